from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import rattler

import making
from dswin import channel as channels
from dswin import lock as locks
from dswin import mirror, solver, sums
from dswin.errors import BadInput, CheckFailed, DswinError, MachineLacks
from making import Made, make_package, serve

PLATFORMS = ("linux-64", "win-64")


@dataclass
class World:
    """Channels of others, in folders ``pytorch``, ``nvidia`` and ``forge``, and where ours is to be."""

    root: Path
    shared: Made | None = None

    @property
    def ours(self) -> Path:
        return self.root / "ours"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def make(self, platform: str) -> dict[str, list[Made]]:
        """What torch with CUDA needs, small: a .tar.bz2, a noarch python package, and one that all platforms share."""
        forge, pytorch, nvidia = (self.root / "upstream" / name for name in ("forge", "pytorch", "nvidia"))
        # Once: an archive holds the time at which it was made, and each platform's lock the hash of the same one.
        self.shared = self.shared or make_package(
            forge, "tqdm", "4.67", noarch="python", files={"site-packages/tqdm.py": b"1\n"}, depends=["python >=3.8"]
        )
        return {
            "forge": [making.make_python(forge, platform), self.shared],
            "pytorch": [
                make_package(
                    pytorch, "pytorch", "2.5.1", "py3.11_cuda12.1_cudnn9_0", subdir=platform, ending=".tar.bz2",
                    depends=["python >=3.11,<3.12.0a0", "pytorch-cuda >=12.1,<12.2", "tqdm"],
                ),
                make_package(pytorch, "pytorch-cuda", "12.1", "ha16c6d3_5", subdir=platform, depends=["cuda-cudart 12.1.*"]),
            ],
            "nvidia": [
                make_package(
                    nvidia, "cuda-cudart", "12.1.105", subdir=platform, depends=["__cuda >=12"],
                    index={"license": "LicenseRef-NVIDIA-End-User-License-Agreement"},
                )
            ],
        }  # fmt: skip

    def lock(self, url: str, *platforms: str, change: Sequence[tuple[str, dict]] = ()) -> locks.Lock:
        entries: list[dict] = []
        for platform in platforms:
            for name, made in self.make(platform).items():
                entries += making.list_locked(made, f"{url}/upstream/{name}", platform)
        for name, fields in change:
            entries = making.alter(entries, name, **fields)
        return locks.read(making.write_lock(self.root / "gpu.conda-lock.yml", entries))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def list_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def solve(url: str, platform: str, specs: Sequence[str], cache: Path, cuda: str = "12.1") -> list:
    virtual = {**solver.VIRTUAL[platform], **({"__cuda": cuda} if cuda else {})}

    async def run() -> list:
        return await rattler.solve(
            sources=[rattler.Channel(url)],
            specs=list(specs),
            gateway=rattler.Gateway(cache_dir=cache),
            platforms=[platform, "noarch"],
            virtual_packages=solver.list_virtual_packages(virtual),
            channel_priority=rattler.ChannelPriority.Strict,
        )

    return asyncio.run(run())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_channel_brings_all_that_deepspeed_win_needs(world: World, platform: str) -> None:
    ours = make_package(
        world.root / "built", "deepspeed-win", "0.19.8", "cuda121_py311_0", subdir=platform,
        depends=["pytorch 2.5.1 *cuda12.1*", "pytorch-cuda 12.1.*", "tqdm"],
    )  # fmt: skip
    channels.add(world.ours, [ours.path])
    with serve(world.root) as server:
        done = mirror.mirror(world.lock(server.url, platform), world.ours, world.store)
        assert len(done.added) == 5
        records = solve(f"{server.url}/ours", platform, ["deepspeed-win"], world.root / "cache")
        assert {record.channel.rstrip("/") for record in records} == {f"{server.url}/ours"}
        assert {record.file_name for record in records if record.name.normalized == "pytorch"} == {
            "pytorch-2.5.1-py3.11_cuda12.1_cudnn9_0.tar.bz2"
        }
        prefix = world.root / "prefix"
        asyncio.run(
            rattler.install(
                records,
                prefix,
                cache_dir=world.root / "packages",
                platform=rattler.Subdir(platform),
                show_progress=False,
            )
        )
    assert (prefix / "share" / "deepspeed-win.txt").read_text() == "deepspeed-win 0.19.8\n"
    assert (prefix / "share" / "pytorch.txt").read_text() == "pytorch 2.5.1\n"
    site = "Lib/site-packages" if platform == "win-64" else "lib/python3.11/site-packages"
    assert (prefix / site / "tqdm.py").is_file()


def test_a_machine_without_a_gpu_is_told_so_by_the_solver(world: World) -> None:
    with serve(world.root) as server:
        mirror.mirror(world.lock(server.url, "linux-64"), world.ours, world.store)
        with pytest.raises(rattler.exceptions.SolverError, match="__cuda"):
            solve(f"{server.url}/ours", "linux-64", ["pytorch"], world.root / "cache", cuda="")


def test_two_platforms_share_noarch(world: World) -> None:
    with serve(world.root) as server:
        done = mirror.mirror(world.lock(server.url, *PLATFORMS), world.ours, world.store)
        assert server.list_paths().count("/upstream/forge/noarch/tqdm-4.67-0.conda") == 1
    assert len(done.added) == 9
    assert {path.parent.name for path in world.ours.glob("*/repodata.json")} == {"noarch", *PLATFORMS}


def test_one_of_the_platforms(world: World) -> None:
    with serve(world.root) as server:
        done = mirror.mirror(world.lock(server.url, *PLATFORMS), world.ours, world.store, platforms=["win-64"])
    assert len(done.added) == 5
    assert not (world.ours / "linux-64").exists()


def test_a_second_run_fetches_and_changes_nothing(world: World) -> None:
    with serve(world.root) as server:
        lock = world.lock(server.url, "linux-64")
        mirror.mirror(lock, world.ours, world.store)
        before, asked = list_tree(world.ours), len(server.requests)
        done = mirror.mirror(lock, world.ours, world.root / "another store")
        assert len(server.requests) == asked
    assert done.added == ()
    assert len(done.archives) == 5
    assert list_tree(world.ours) == before


def test_what_was_copied_by_hand_and_not_indexed_is_indexed(world: World) -> None:
    with serve(world.root) as server:
        lock = world.lock(server.url, "linux-64")
        mirror.mirror(lock, world.ours, world.store)
    repodata = world.ours / "linux-64" / "repodata.json"
    document = json.loads(repodata.read_text())
    repodata.write_text(json.dumps({**document, "packages.conda": {}}))
    mirror.mirror(lock, world.ours, world.store)
    assert json.loads(repodata.read_text())["packages.conda"].keys() == document["packages.conda"].keys()


def test_a_published_file_is_never_replaced(world: World) -> None:
    # The same name, version and build, and another content.
    other = make_package(
        world.root / "other", "cuda-cudart", "12.1.105", subdir="linux-64", files={"share/other.txt": b"other"}
    )
    channels.add(world.ours, [other.path])
    before = list_tree(world.ours)
    with (
        serve(world.root) as server,
        pytest.raises(CheckFailed, match=r"another linux-64/cuda-cudart-12.1.105-0.conda"),
    ):
        mirror.mirror(world.lock(server.url, "linux-64"), world.ours, world.store)
    assert list_tree(world.ours) == before


def test_two_packages_of_one_file_name_are_refused(world: World) -> None:
    with serve(world.root) as server:
        lock = world.lock(server.url, *PLATFORMS)
        path = lock.path
        text = path.read_text()
        # The win-64 packages come last.
        first, _, last = text.rpartition(f"{server.url}/upstream/forge/noarch/tqdm")
        path.write_text(f"{first}{server.url}/upstream/nvidia/noarch/tqdm{last}")
        with pytest.raises(
            CheckFailed, match=r"Two packages have the file name noarch/tqdm-4.67-0.conda: .*forge.*nvidia"
        ):
            mirror.mirror(locks.read(path), world.ours, world.store)
    assert not world.ours.exists()


def test_one_url_with_two_hashes_is_refused(world: World) -> None:
    with serve(world.root) as server:
        lock = world.lock(server.url, *PLATFORMS)
        first, digest, last = lock.path.read_text().rpartition("sha256: ")
        at = first.rindex("noarch/tqdm")
        start = first.index("sha256: ", at) + len("sha256: ")
        lock.path.write_text(first[:start] + "a" * 64 + first[start + 64 :] + digest + last)
        with pytest.raises(CheckFailed, match=r"noarch/tqdm-4.67-0.conda with different hashes"):
            mirror.mirror(locks.read(lock.path), world.ours, world.store)


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_the_outcome_of_a_rehearsal_is_refused(world: World, ending: str) -> None:
    made = make_package(
        world.root / "upstream", "deepspeed-win", subdir="win-64", depends=["__rehearsal"], ending=ending
    )
    lock = locks.read(
        making.lock_of(world.root / "l.conda-lock.yml", [made], making.to_url(world.root / "upstream"), "win-64")
    )
    with pytest.raises(BadInput, match="comes out of a rehearsal"):
        mirror.mirror(lock, world.ours, world.store)
    assert not world.ours.exists()


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"name": "other"}, "calls itself other"),
        ({"version": "9"}, "calls itself cuda-cudart 9"),
        ({"build": "1"}, "calls itself cuda-cudart 12.1.105 1"),
        ({"subdir": "noarch"}, "its own subdir is 'noarch'"),
        ({"depends": "python"}, "metadata that no solver can read"),
        ({"depends": ["python >=3,"]}, "metadata that no solver can read"),
        ({"depends": [" "]}, "metadata that no solver can read"),
        ({"constrains": [3]}, "metadata that no solver can read"),
        ({"build_number": "many"}, "metadata that no solver can read"),
    ],
)
def test_an_archive_that_says_it_is_another_is_refused(world: World, index: dict, said: str) -> None:
    home = world.root / "upstream" / "nvidia"
    made = make_package(home, "cuda-cudart", "12.1.105", subdir="linux-64")
    right = made.path
    fake = make_package(world.root / "fake", "cuda-cudart", "12.1.105", subdir="linux-64", index=index)
    # make_package names the file after its arguments; the fields of index are what is inside.
    right.write_bytes(fake.path.read_bytes())
    lock = locks.read(making.lock_of(world.root / "l.conda-lock.yml", [made], making.to_url(home)))
    with pytest.raises(CheckFailed, match="cuda-cudart") as caught:
        mirror.mirror(lock, world.ours, world.store)
    assert said in caught.value.what
    assert not world.ours.exists()


@pytest.mark.parametrize("kind", ["altered", "truncated", "absent"])
def test_what_is_served_wrong_is_named_and_nothing_changes(world: World, kind: str) -> None:
    channels.add(world.ours, [make_package(world.root / "built", "deepspeed-win", subdir="linux-64").path])
    before = list_tree(world.ours)
    with serve(world.root) as server:
        lock = world.lock(server.url, "linux-64")
        path = "/upstream/nvidia/linux-64/cuda-cudart-12.1.105-0.conda"
        right = (world.root / path[1:]).read_bytes()
        if kind == "absent":
            server.faults.status[path] = 404
        else:
            server.faults.bytes[path] = right[:-9] if kind == "truncated" else right[:99] + b"!" + right[100:]
        with pytest.raises(MachineLacks if kind == "absent" else CheckFailed, match="cuda-cudart") as caught:
            mirror.mirror(lock, world.ours, world.store)
    assert isinstance(caught.value, DswinError)
    assert list_tree(world.ours) == before


def test_a_stopped_run_leaves_the_old_index_and_the_next_one_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels.add(world.ours, [make_package(world.root / "built", "deepspeed-win", subdir="linux-64").path])
    before = list_tree(world.ours)

    def stop(_: Path) -> None:
        raise KeyboardInterrupt

    with serve(world.root) as server:
        lock = world.lock(server.url, "linux-64")
        with monkeypatch.context() as patch:
            patch.setattr(channels, "index", stop)
            with pytest.raises(KeyboardInterrupt):
                mirror.mirror(lock, world.ours, world.store)
        assert list_tree(world.ours) == before
        mirror.mirror(lock, world.ours, world.store)
    assert len(channels.list_packages(world.ours, "pytorch-cuda")) == 1


def test_the_repodata_have_the_archives_own_requirements(world: World) -> None:
    with serve(world.root) as server:
        # A lock whose channel had corrected the requirements.
        change = [("pytorch-cuda", {"dependencies": {"cuda-cudart": ">=12"}})]
        mirror.mirror(world.lock(server.url, "linux-64", change=change), world.ours, world.store)
    [record] = channels.list_packages(world.ours, "pytorch-cuda")
    assert record["depends"] == ["cuda-cudart 12.1.*"]


def test_requirements_that_the_closure_does_not_fulfil_are_named(tmp_path: Path) -> None:
    made = [
        make_package(tmp_path / "u", "a", depends=["b >=2", "missing", "__cuda >=12", "c 1.0 0", "conda-forge::c >=1"]),
        make_package(tmp_path / "u", "b", depends=["c >=2"], index={"constrains": ["c <1", "absent <3"]}),
        make_package(tmp_path / "u", "c"),
    ]
    lock = locks.read(making.lock_of(tmp_path / "l.conda-lock.yml", made, making.to_url(tmp_path / "u")))
    done = mirror.mirror(lock, tmp_path / "ours", tmp_path / "store")
    assert list(done.warnings) == [
        "a 1.0 0 itself depends on b >=2, and the lock has 1.0 0",
        "a 1.0 0 itself depends on missing, which is not in the lock",
        "b 1.0 0 itself depends on c >=2, and the lock has 1.0 0",
        "b 1.0 0 itself allows only c <1, and the lock has 1.0 0",
    ]


def test_licences_are_listed_and_companies_own_are_spoken_of(world: World) -> None:
    with serve(world.root) as server:
        done = mirror.mirror(world.lock(server.url, "linux-64"), world.ours, world.store)
    [warning] = done.warnings
    assert "1 package under licences of NVIDIA's" in warning
    assert "cuda-cudart" in warning
    lines = (world.ours / mirror.LICENCES).read_text().splitlines()
    assert "linux-64/cuda-cudart-12.1.105-0.conda\tLicenseRef-NVIDIA-End-User-License-Agreement" in lines
    assert "noarch/tqdm-4.67-0.conda\tApache-2.0" in lines
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("licence", "channel", "is_companys"),
    [
        ("LicenseRef-ProprietaryIntel", "forge", True),
        ("cuDNN Software License Agreement", "forge", True),
        ("", "nvidia", True),
        (None, "nvidia/label/cuda-12.4.0", True),
        ("", "forge", False),
        ("BSD-3-Clause", "nvidia-free", False),
        ("MIT", "nvidia", False),
    ],
)
def test_whose_licence_it_is(tmp_path: Path, licence: str | None, channel: str, is_companys: bool) -> None:
    package = locks.Locked("a", "1", "0", "linux-64", f"https://host/{channel}/noarch/a-1-0.conda", "0" * 32, None)
    archive = mirror.Archive(package, tmp_path, {"license": licence})
    assert archive.is_companys is is_companys
    assert archive.licence


def test_md5_is_enough(world: World) -> None:
    home = world.root / "upstream"
    made = [make_package(home, "pytorch", subdir="win-64", ending=".tar.bz2")]
    path = making.lock_of(world.root / "l.conda-lock.yml", made, making.to_url(home), "win-64", hashes=["md5"])
    for added in (1, 0):
        assert len(mirror.mirror(locks.read(path), world.ours, world.store).added) == added


def test_a_platform_that_the_lock_is_not_for(world: World) -> None:
    with serve(world.root) as server, pytest.raises(BadInput, match="not for win-64"):
        mirror.mirror(world.lock(server.url, "linux-64"), world.ours, world.store, platforms=["win-64"])


def test_a_platform_that_no_channel_of_ours_has(world: World) -> None:
    made = [make_package(world.root / "upstream", "a", subdir="osx-arm64")]
    path = making.lock_of(world.root / "l.conda-lock.yml", made, making.to_url(world.root / "upstream"), "osx-arm64")
    with pytest.raises(BadInput, match="osx-arm64"):
        mirror.mirror(locks.read(path), world.ours, world.store)


def test_a_folder_that_is_no_channel_is_left_alone(world: World) -> None:
    world.ours.mkdir()
    (world.ours / "thesis.docx").write_text("mine")
    with serve(world.root) as server, pytest.raises(BadInput, match="not a conda channel"):
        mirror.mirror(world.lock(server.url, "linux-64"), world.ours, world.store)
    assert list_tree(world.ours) == {"thesis.docx": b"mine"}


def test_a_folder_with_a_list_of_sums_keeps_it_right(world: World) -> None:
    with serve(world.root) as served:
        mirror.mirror(world.lock(served.url, "linux-64"), world.ours, world.store)
        (world.ours / "SHA256SUMS").write_bytes(b"")
        mirror.mirror(world.lock(served.url, "win-64"), world.ours, world.store)
    before = sums.read(world.ours / "SHA256SUMS")
    assert before.keys() == set(sums.list_files(world.ours))
    assert before["licences.txt"] == hashlib.sha256((world.ours / "licences.txt").read_bytes()).hexdigest()
