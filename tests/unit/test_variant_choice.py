"""Which build of deepspeed-win a plain request gets, for each order of channels, priority and driver: the whole table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rattler import Version

import variants
from dswin import records
from variants import CASES, DRIVERS, GPU_MIRROR, NOTHING, OURS, Case, Choice

README = (variants.LOCKS / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def choice() -> Iterator[Choice]:
    with variants.open_choice(records.read(variants.LOCKS / "records"), variants.read_locked()) as opened:
        yield opened


@pytest.fixture(scope="module")
def chosen(choice: Choice) -> dict[Case, dict[str, str] | None]:
    """{case: {package: version and build}}, or nothing where there is no solution."""
    found = {case: choice.solve(case, "deepspeed-win") for case in CASES}
    return {
        case: packages and {one.name.normalized: f"{one.version} {one.build}" for one in packages}
        for case, packages in found.items()
    }


def tell_variant(packages: dict[str, str] | None) -> str:
    return packages["deepspeed-win"].split()[1].partition("_")[0] if packages else NOTHING


def test_the_table_is_the_stored_one_and_the_readmes(chosen: dict[Case, dict[str, str] | None]) -> None:
    now = variants.write_table(
        {case: packages["deepspeed-win"].split()[1] if packages else NOTHING for case, packages in chosen.items()}
    )
    assert now == variants.TABLE.read_text(encoding="utf-8"), "python tests/variants.py --update, and review the diff"
    assert now in README


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_driver_can_run_what_is_chosen(case: Case, chosen: dict[Case, dict[str, str] | None]) -> None:
    needs = {"cuda121": "12.1", "cuda130": "13.0"}.get(tell_variant(chosen[case]))
    if needs:
        assert case.cuda is not None
        assert Version(case.cuda) >= Version(needs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_is_of_the_same_kind(case: Case, chosen: dict[Case, dict[str, str] | None]) -> None:
    packages = chosen[case]
    if packages:
        version, build = packages["pytorch"].split()
        mark, torch = {"cuda121": ("cuda12.1", "2.5.1"), "cuda130": ("cuda130", "2.10.0"), "cpu": ("cpu", "2.5.1")}[
            tell_variant(packages)
        ]
        assert mark in build
        assert version == torch


def test_a_gpu_stays_unused_only_where_no_channel_can_give_its_torch(
    chosen: dict[Case, dict[str, str] | None],
) -> None:
    cpu = {case for case in CASES if case.cuda and tell_variant(chosen[case]) not in ("cuda121", "cuda130")}
    # conda-forge has no torch for CUDA 12, and what comes after it is not looked at where it has the name.
    hidden = {(OURS, "conda-forge"): ("strict", "disabled"), (OURS, "conda-forge", "pytorch", "nvidia"): ("strict",)}
    assert cpu == {
        Case(channels, priority, cuda)
        for channels, ways in hidden.items()
        for priority in ways
        for cuda in ("12.1", "12.4")
    }


@pytest.mark.parametrize("variant", ["cuda121", "cuda130"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_variant_that_is_asked_for_is_that_variant_or_none(case: Case, variant: str, choice: Choice) -> None:
    packages = choice.solve(case, f"deepspeed-win * {variant}*")
    assert variants.describe(packages).partition("_")[0] in (variant, NOTHING)
    if case.cuda is None or (case.cuda != "13.0" and variant == "cuda130"):
        assert packages is None


FOUR = (OURS, "pytorch", "nvidia", "conda-forge")


@pytest.mark.parametrize(
    ("case", "plain", "named"),
    [
        (Case(FOUR, "disabled", "13.0", "8.9"), "cuda121", ("cuda121", "cuda130")),
        # RTX 50: torch 2.5.1 has no code for it.
        (Case(FOUR, "disabled", "13.0", "12.0"), "cuda130", ("cuda130",)),
        (Case((OURS, "conda-forge"), "strict", "13.0", "12.0"), "cuda130", ("cuda130",)),
        # The torch that has is hidden behind the pytorch channel's, or needs a newer driver.
        (Case(FOUR, "strict", "13.0", "12.0"), "cpu", ()),
        (Case(FOUR, "disabled", "12.4", "12.0"), "cpu", ()),
        # CUDA 13 has no code for a V100.
        (Case(FOUR, "disabled", "13.0", "7.0"), "cuda121", ("cuda121",)),
    ],
    ids=str,
)
def test_a_client_that_knows_the_gpu_takes_no_torch_without_code_for_it(
    choice: Choice, case: Case, plain: str, named: tuple[str, ...]
) -> None:
    assert variants.describe(choice.solve(case, "deepspeed-win")).partition("_")[0] == plain
    assert tuple(one for one in ("cuda121", "cuda130") if choice.solve(case, f"deepspeed-win * {one}*")) == named


def test_without_a_driver_a_mirror_of_gpu_locks_gives_nothing(chosen: dict[Case, dict[str, str] | None]) -> None:
    assert [chosen[Case((GPU_MIRROR,), way, None)] for way in variants.PRIORITIES] == [None, None]


def test_the_cases_are_those_that_were_promised() -> None:
    assert len(CASES) == len(set(CASES)) == len(variants.CHANNELS) * 2 * len(DRIVERS) == 48


def test_the_stand_ins_decide_as_the_recipe_asks() -> None:
    from rattler import MatchSpec

    [*wanted] = {
        text
        for one in variants.list_ours()
        if one.repodata["build"].startswith("cuda130")
        for text in one.repodata["depends"]
        if text.startswith("pytorch ")
    }
    [spec] = [MatchSpec(text, strict=False) for text in wanted]
    for one in variants.list_stand_ins():
        assert str(spec.version) == "2.10.*"
        assert one.repodata["version"].startswith("2.10.")
        assert one.repodata["build"].startswith("cuda130")
