"""deepspeed-win: build, check, lock and install DeepSpeed compiled ahead of time."""

__version__ = "0.1.0"
