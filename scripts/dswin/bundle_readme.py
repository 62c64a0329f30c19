"""What a bundle says to a person who has nothing but the file."""

from __future__ import annotations

_ENGLISH = """\
DeepSpeed for {system}, without a network
=========================================

This bundle holds {count} packages ({megabytes} MB) and what is needed to install them. It was made by `dswin bundle create`.
No step below needs a network, and none needs administrator rights.

Before you install: compare the bundle's SHA-256 with the one that its maker told you.
  PowerShell   Get-FileHash {name}
  Linux        sha256sum {name}

A. With conda (Miniforge, Miniconda, Anaconda), mamba or micromamba
   1. Unpack the bundle into an empty folder.
   2. Open a conda prompt in that folder:
        python install.py --prefix {prefix}
      It checks every file, then makes the environment. micromamba alone has no Python: use C.
   3. conda activate {prefix}

B. With dswin (from the project deepspeed-win), no conda needed; the bundle stays packed
        dswin bundle install BUNDLE --prefix {prefix}
   If the folder wheels is in this bundle, the Python that they are for is enough to get dswin:
        python -m pip install --no-index --find-links wheels dswin

C. By hand, from the unpacked folder; conda does not check the files then
        conda create --prefix {prefix} --offline --override-channels -c {url} --file packages.txt

The folder channel is a conda channel: put it on a share, and a whole team installs from it.
channel/licences.txt names each package's licence. Some are NVIDIA's or Intel's own: whether you may pass them on, inside
your company too, is for your company to decide.
"""

_CHINESE = """\
离线安装 DeepSpeed（{system}）
=========================================

本文件包含 {count} 个软件包（{megabytes} MB）以及安装所需的一切，由 `dswin bundle create` 生成。
以下步骤都不需要网络，也不需要管理员权限。

安装之前：请把本文件的 SHA-256 与制作者告知的值进行比较。
  PowerShell   Get-FileHash {name}
  Linux        sha256sum {name}

A. 使用 conda（Miniforge、Miniconda、Anaconda）、mamba 或 micromamba
   1. 把本文件解压到一个空文件夹。
   2. 在该文件夹中打开 conda 命令行：
        python install.py --prefix {prefix}
      它先检查每个文件，再创建环境。只有 micromamba 而没有 Python 时，请用方法 C。
   3. conda activate {prefix}

B. 使用 dswin（来自 deepspeed-win 项目），不需要 conda，也不需要解压
        dswin bundle install BUNDLE --prefix {prefix}
   如果本文件中有 wheels 文件夹，只需与其对应版本的 Python 即可安装 dswin：
        python -m pip install --no-index --find-links wheels dswin

C. 手动安装（在解压后的文件夹中；此时 conda 不会检查文件）
        conda create --prefix {prefix} --offline --override-channels -c {url} --file packages.txt

channel 文件夹就是一个 conda 频道：放到共享目录，整个团队都可以从它安装。
channel/licences.txt 列出了每个软件包的许可证。其中一些是 NVIDIA 或 Intel 自己的许可证：能否分发（包括在公司内部），
由贵公司自行决定。
"""


def write_readme(platform: str, count: int, size: int) -> bytes:
    """README.txt in English and Chinese: UTF-8 with a mark and Windows' line ends, so that every Notepad shows it right.

    :param size: of the packages, in bytes.
    """
    windows = platform == "win-64"
    words = {
        "system": "Windows" if windows else "Linux",
        "count": count,
        "megabytes": f"{size / 1e6:.0f}",
        "name": "BUNDLE",
        "prefix": r"C:\envs\ds" if windows else "~/envs/ds",
        "url": "file:///C:/UNPACKED/channel" if windows else "file:///UNPACKED/channel",
    }
    text = _ENGLISH.format(**words) + "\n\n" + _CHINESE.format(**words)
    return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
