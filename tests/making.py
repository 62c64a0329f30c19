"""Small conda packages made on the fly, channels of them, locks that name them, and a web server with faults."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import yaml
from conda_package_streaming.create import conda_builder

#: What builders put where the prefix is to go: 255 characters, as conda-build and rattler-build have it.
PLACEHOLDER = ("/opt/placehold" + "_placehold" * 30)[:255]


@dataclass(frozen=True)
class File:
    """A file of a package.

    :param mode: ``text`` or ``binary`` if the placeholder is in it and is to be replaced.
    :param link: what a symbolic link points to; ``data`` is then nothing.
    """

    data: bytes = b""
    mode: str | None = None
    link: str | None = None
    executable: bool = False


@dataclass(frozen=True)
class Made:
    """A package that lies in a channel folder."""

    path: Path
    index: Mapping[str, object] = field(hash=False)

    @property
    def name(self) -> str:
        return str(self.index["name"])

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def md5(self) -> str:
        return hashlib.md5(self.path.read_bytes()).hexdigest()


def text_with_prefix(before: str = "home = ", after: str = "/share\n") -> File:
    """A text in which the placeholder stands."""
    return File(f"{before}{PLACEHOLDER}{after}".encode(), mode="text")


def binary_with_prefix() -> File:
    """A binary in which the placeholder stands as a C string, twice, with a path behind it."""
    return File(
        b"\x7fELF\x00" + f"{PLACEHOLDER}/lib".encode() + b"\x00\x01" + PLACEHOLDER.encode() + b"\x00end", "binary"
    )


def make_package(
    channel: Path,
    name: str,
    version: str = "1.0",
    build: str = "0",
    *,
    files: Mapping[str, File | bytes] | None = None,
    depends: Iterable[str] = (),
    subdir: str = "noarch",
    noarch: str | None = None,
    entry_points: Iterable[str] = (),
    ending: str = ".conda",
    index: Mapping[str, object] | None = None,
    paths: Mapping[str, Mapping[str, object]] | None = None,
    info: Mapping[str, object] | None = None,
) -> Made:
    """Write a package into ``channel/subdir`` as it would come out of a builder, in place of one of the same name.

    :param files: by default one, ``share/NAME.txt``.
    :param noarch: ``python`` or ``generic``; by default generic in noarch, nothing elsewhere. Files of a noarch python package
        lie in ``site-packages/``; ``entry_points`` are for it.
    :param index: more fields for info/index.json, or others.
    :param paths: {path: fields that are to be other than they are} in info/paths.json.
    :param info: {file name: document} more in info/, or in place of what is there.
    """
    files = {f"share/{name}.txt": f"{name} {version}\n".encode()} if files is None else files
    kind = noarch or ("generic" if subdir == "noarch" else None)
    content = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": list(depends),
        "subdir": subdir,
        "license": "Apache-2.0",
        "timestamp": 1_700_000_000_000,
        **({"noarch": kind} if kind else {}),
        **(index or {}),
    }
    members: dict[str, File] = {path: file if isinstance(file, File) else File(file) for path, file in files.items()}
    entries = []
    for path, file in members.items():
        target = members.get(str(Path(path).parent / file.link)) if file.link else None
        data = target.data if target else file.data
        entries.append(
            {
                "_path": path,
                "path_type": "softlink" if file.link else "hardlink",
                "sha256": hashlib.sha256(data).hexdigest(),
                "size_in_bytes": len(data),
                **({"prefix_placeholder": PLACEHOLDER, "file_mode": file.mode} if file.mode else {}),
                **(paths or {}).get(path, {}),
            }
        )
    documents: dict[str, object] = {
        "index.json": content,
        "paths.json": {"paths": entries, "paths_version": 1},
        "about.json": {"summary": f"{name}, made for a test"},
    }
    documents |= info or {}
    if kind == "python":
        documents["link.json"] = {
            "noarch": {"type": "python", "entry_points": list(entry_points)},
            "package_metadata_version": 1,
        }
    for file_name, document in documents.items():
        members[f"info/{file_name}"] = File(json.dumps(document, indent=1).encode())
    members["info/files"] = File("".join(f"{path}\n" for path in files).encode())
    folder = channel / subdir
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}-{build}"
    (folder / f"{stem}{ending}").unlink(missing_ok=True)
    if ending == ".conda":
        with conda_builder(stem, folder, compression_level=1) as archive:
            _add_members(archive, members)
    else:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            _add_members(archive, members)
        (folder / f"{stem}{ending}").write_bytes(bz2.compress(tar.getvalue()))
    return Made(folder / f"{stem}{ending}", content)


def _add_members(archive: tarfile.TarFile, members: Mapping[str, File]) -> None:
    for path, file in members.items():
        entry = tarfile.TarInfo(path)
        entry.mtime = 1_700_000_000
        if file.link:
            entry.type, entry.linkname = tarfile.SYMTYPE, file.link
            archive.addfile(entry)
            continue
        entry.size, entry.mode = len(file.data), 0o755 if file.executable else 0o644
        archive.addfile(entry, io.BytesIO(file.data))


def make_python(channel: Path, platform: str = "linux-64", version: str = "3.11.7") -> Made:
    """A stand-in for Python, so that noarch python packages can be linked; it runs nothing."""
    path = "python.exe" if platform == "win-64" else "bin/python3.11"
    return make_package(
        channel, "python", version, "0_cpython", subdir=platform, files={path: File(b"#!/bin/sh\n", executable=True)}
    )


def make_sample(channel: Path, platform: str = "linux-64") -> list[Made]:
    """Packages with every kind of file: python, alpha (native), pure (noarch python), old (.tar.bz2)."""
    start = f"#!{PLACEHOLDER}/bin/python -u\nprint('{PLACEHOLDER}')\n".encode()
    alpha = {
        "bin/run": File(start, "text", executable=True),
        "etc/alpha.cfg": text_with_prefix(),
        "lib/alpha.so": binary_with_prefix(),
        "lib/alpha.so.1": File(link="alpha.so"),
        "lib/data": File(link="../share"),
        "share/alpha.txt": b"alpha\n",
        "share/second.txt": b"second\n",
    }
    pure = {
        "site-packages/pure/__init__.py": b"def main():\n    print('pure')\n",
        "python-scripts/tool": File(start, "text", executable=True),
    }
    return [
        make_python(channel, platform),
        make_package(channel, "alpha", files=alpha, subdir=platform),
        make_package(
            channel, "pure", noarch="python", files=pure, entry_points=["pure = pure:main"], depends=["python"]
        ),
        make_package(channel, "old", ending=".tar.bz2", depends=["alpha >=1"]),
    ]


def index_channel(channel: Path) -> Path:
    """Write the repodata of all subdirs of a channel folder, noarch too."""
    from dswin import channel as channels

    for subdir in channels.SUBDIRS:
        if subdir == "noarch" or (channel / subdir).is_dir():
            channels.index_subdir(channel, subdir, compressed=False)
    return channel


def to_url(channel: Path) -> str:
    """The file url of a channel folder."""
    return "file://" + quote(channel.absolute().as_posix())


def list_locked(
    made: Iterable[Made], base: str, platform: str = "linux-64", *, hashes: Iterable[str] = ("md5", "sha256")
) -> list[dict]:
    """The packages as a lock has them.

    :param base: the channel's url.
    :param hashes: which of them the lock has.
    """
    entries = []
    for package in made:
        depends = dict((*spec.split(maxsplit=1), "")[:2] for spec in package.index["depends"])  # type: ignore[union-attr]
        entries.append(
            {
                "name": package.name,
                "version": package.index["version"],
                "manager": "conda",
                "platform": platform,
                "dependencies": {name: spec.split()[0] if spec else "" for name, spec in depends.items()},
                "url": f"{base}/{package.index['subdir']}/{quote(package.path.name)}",
                "hash": {kind: getattr(package, kind) for kind in hashes},
                "category": "main",
                "optional": False,
            }
        )
    return entries


def write_lock(path: Path, entries: Iterable[Mapping], channels: Iterable[str] = (), **metadata: object) -> Path:
    """Write a conda-lock.yml of version 1 from entries such as :func:`list_locked` gives."""
    entries = list(entries)
    platforms = sorted({entry["platform"] for entry in entries}) or ["linux-64"]
    document = {
        "version": 1,
        "metadata": {
            "content_hash": dict.fromkeys(platforms, "0" * 64),
            "channels": [{"url": url, "used_env_vars": []} for url in channels],
            "platforms": platforms,
            "sources": ["environment.yml"],
            **metadata,
        },
        "package": entries,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def lock_of(path: Path, made: Iterable[Made], base: str, platform: str = "linux-64", **options: object) -> Path:
    """Write the lock of packages in a channel whose url is ``base``."""
    return write_lock(path, list_locked(made, base, platform, **options), [base])  # type: ignore[arg-type]


@dataclass
class Faults:
    """What goes wrong at a server; everything may be changed while it runs.

    :param refuse: {path: how often it still answers 503}.
    :param cut: {path: bytes after which the connection breaks, once}.
    :param status: {path: status that it always answers}.
    :param bytes: {path: what it serves in place of the file}.
    :param ranges: False: every answer is the whole file.
    :param login: the Authorization header that every request must have.
    :param delay: seconds before each piece of 64 KiB.
    """

    refuse: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    login: str | None = None
    delay: float = 0.0


@dataclass
class Served:
    """A running server. ``requests`` are (method, path, Range header or nothing), in the order they came."""

    url: str
    faults: Faults
    requests: list[tuple[str, str, str | None]]

    def list_paths(self, method: str = "GET") -> list[str]:
        return [path for kind, path, _ in self.requests if kind == method]


@contextmanager
def serve(folder: Path, faults: Faults | None = None) -> Iterator[Served]:
    """Serve a folder over http on the loopback, with Range, while the context lasts."""
    served = Served("", faults or Faults(), [])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path, wrong = unquote(urlsplit(self.path).path), served.faults
            served.requests.append((self.command, path, self.headers.get("Range")))
            status = wrong.status.get(path)
            if wrong.login and self.headers.get("Authorization") != wrong.login:
                status = 401
            if wrong.refuse.get(path, 0) > 0:
                wrong.refuse[path] -= 1
                status = 503
            file = folder / path.lstrip("/")
            data = wrong.bytes.get(path)
            if data is None and file.is_file():
                data = file.read_bytes()
            if status or data is None:
                self.send_response(status or 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_data(path, data, body)

        def send_data(self, path: str, data: bytes, body: bool) -> None:
            total, start, end = len(data), 0, len(data)
            wanted = self.headers.get("Range")
            if wanted and served.faults.ranges:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start = int(first) if first else total - int(last)
                end = int(last) + 1 if first and last else total
                if start >= total:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{total}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{min(end, total) - 1}/{total}")
            else:
                self.send_response(200)
            data = data[start:end]
            self.send_header("Content-Length", str(len(data)))
            if served.faults.ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if not body:
                return
            cut = served.faults.cut.pop(path, None)
            if cut is not None:
                data, self.close_connection = data[:cut], True
            for at in range(0, len(data), 2**16):
                threading.Event().wait(served.faults.delay)
                self.wfile.write(data[at : at + 2**16])

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, address: object) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def alter(entries: list[dict], name: str, **fields: object) -> list[dict]:
    """The same entries of a lock, with other fields for one package."""
    return [{**entry, **fields} if entry["name"] == name else entry for entry in entries]
