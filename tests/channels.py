"""Channels of deepspeed-win with its variants, made for tests."""

from __future__ import annotations

from pathlib import Path

from making import Made, make_package

#: What the recipe's variants require of torch and CUDA, their build number's offset, and their GPU architectures.
VARIANTS: dict[str, tuple[list[str], int, str]] = {
    "cuda121": (
        ["pytorch ==2.5.1 *cuda12.1*", "pytorch-cuda >=12.1,<12.2", "__cuda >=12.1"],
        200,
        "7.5;8.0;8.6;8.9;9.0+PTX",
    ),
    "cuda130": (
        ["pytorch 2.10.* *cuda130*", "cuda-version >=13.0,<14", "__cuda >=13"],
        100,
        "7.5;8.0;8.6;9.0;12.0+PTX",
    ),
    "cpu": (["pytorch 2.5.* *cpu*"], 0, "none"),
}


def make_variant(
    channel: Path, variant: str = "cpu", version: str = "0.19.8", python: str = "3.11", subdir: str = "win-64",
    *, number: int = 0, **options: object,
) -> Made:  # fmt: skip
    """One build of deepspeed-win, small."""
    depends, offset, archs = VARIANTS[variant]
    build = f"{variant}_py{python.replace('.', '')}_{number}"
    return make_package(
        channel,
        "deepspeed-win",
        version,
        build,
        subdir=subdir,
        depends=[f"python {python}.*", *depends],
        index={"build_number": offset + number},
        info={
            "about.json": {"summary": "DeepSpeed, made for a test", "extra": {"simd": "avx2", "cuda_arch_list": archs}}
        },
        **options,  # type: ignore[arg-type]
    )
