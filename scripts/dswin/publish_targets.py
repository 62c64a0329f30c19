"""Where a channel can be published: folders and S3, whose files we write, and servers, which index what is uploaded."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from . import addresses, channel_data, files, mutex, sums
from . import channel as channels
from .digests import hash_bytes, hash_file, hash_pieces
from .errors import BadInput, CheckFailed, MachineLacks
from .solver import first_line

Progress = Callable[[str], None]

_PIECE = 2**20


class Files(Protocol):
    """A target of plain files, each named by its path in the channel with slashes."""

    def hold(self, progress: Progress, dry_run: bool) -> Any:
        """A context in which no other publish writes there."""

    def read(self, path: str) -> bytes | None:
        """A document's bytes; nothing if it is not there."""

    def find_hash(self, path: str) -> str | None:
        """The sha256 of what is there, from its bytes; nothing if nothing is."""

    def list_files(self) -> list[str]:
        """All files but hidden ones and the list of sums."""

    def put(self, path: str, source: Path, sha256: str) -> None:
        """Write a file that is not there yet; whole, or not at all.

        :raises CheckFailed: the source is not, or no longer, what the hash says.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a document, in place of an older one, in one piece."""


class Folder:
    """A folder of this machine, or a share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def hold(self, progress: Progress, dry_run: bool) -> Iterator[None]:
        channels.check_folder(self.path)
        if dry_run:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            # Building and indexing put another folder in its place. Who cannot write beside it cannot do that either.
            with suppress(OSError):
                held.enter_context(channels.hold(self.path, progress))
            self.path.mkdir(exist_ok=True)
            held.enter_context(
                mutex.hold(self.path, f"another publish to {self} is under way: waiting for it", progress)
            )
            for left in self.path.rglob(".*.part"):  # of a run that was killed
                left.unlink()
            if not (self.path / "noarch").is_dir():
                self._begin()
            yield

    def _begin(self) -> None:
        """Make an empty channel of an empty folder at one blow: no other run and no later one takes it for anything else."""
        new = self.path / ".noarch"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        (new / "repodata.json").write_bytes(files.to_json(channel_data.make_repodata("noarch", {})))
        os.replace(new, self.path / "noarch")

    def read(self, path: str) -> bytes | None:
        try:
            return (self.path / path).read_bytes()
        except FileNotFoundError:
            return None

    def find_hash(self, path: str) -> str | None:
        file = self.path / path
        return hash_file(file) if file.exists() else None

    def list_files(self) -> list[str]:
        return list(sums.list_files(self.path))

    def put(self, path: str, source: Path, sha256: str) -> None:
        with source.open("rb") as reader:
            self._write(path, reader, sha256)

    def write(self, path: str, data: bytes) -> None:
        self._write(path, io.BytesIO(data), hash_bytes(data))

    def _write(self, path: str, reader: BinaryIO, sha256: str) -> None:
        """Write a file beside its place, see that all of it is on the disk, and put it there."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")  # hidden, so that nobody takes it for a package
        try:
            with part.open("wb") as writer:
                shutil.copyfileobj(reader, writer, _PIECE)
                writer.flush()
                os.fsync(writer.fileno())
            if hash_file(part) != sha256:
                raise CheckFailed(
                    f"{path} did not arrive in {self} as its channel's repodata have it.",
                    fix="Run `dswin channel check` on the channel that is published. If that is in order, a disk is failing.",
                )
            files.replace(part, file)
        finally:
            part.unlink(missing_ok=True)


class Bucket:
    """A path in an S3 bucket, written with boto3: credentials, region and AWS_ENDPOINT_URL are read as it reads them."""

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import boto3
        except ImportError as error:
            raise MachineLacks("Publishing to S3 needs boto3.", fix="pip install boto3") from error
        self.bucket, self.prefix = bucket, f"{prefix}/" if prefix else ""
        self.client = boto3.client("s3")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @contextmanager
    def hold(self, progress: Progress, dry_run: bool) -> Iterator[None]:
        """An object that only one run can make. After a kill it stays, and the error says so."""
        with self._explain():
            if dry_run:
                yield
                return
            try:
                self._put(mutex.LOCK, b"", IfNoneMatch="*")
            except self.client.exceptions.ClientError as error:
                if self._code(error) not in ("PreconditionFailed", "412"):
                    raise
                raise CheckFailed(
                    f"Another publish to {self} is under way, or one was killed: there is {self}/{mutex.LOCK}.",
                    fix="Wait for it. If none is running, delete that object and run again: what was sent is not sent again.",
                ) from error
            try:
                yield
            finally:
                self.client.delete_object(Bucket=self.bucket, Key=self.prefix + mutex.LOCK)

    def read(self, path: str) -> bytes | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=self.prefix + path)["Body"].read()
        except self.client.exceptions.ClientError as error:
            if self._code(error) in ("NoSuchKey", "404"):
                return None
            raise

    def find_hash(self, path: str) -> str | None:
        """S3's own checksum of the object, which S3 computed when it came; without one, of the bytes."""
        try:
            head = self.client.head_object(Bucket=self.bucket, Key=self.prefix + path, ChecksumMode="ENABLED")
        except self.client.exceptions.ClientError as error:
            if self._code(error) in ("NoSuchKey", "404"):
                return None
            raise
        known = head.get("ChecksumSHA256", "")
        if known and "-" not in known:  # with a hyphen it is one of parts
            return base64.b64decode(known).hex()
        body = self.client.get_object(Bucket=self.bucket, Key=self.prefix + path)["Body"]
        return hash_pieces(body.iter_chunks(_PIECE))

    def list_files(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        names = [one["Key"][len(self.prefix) :] for page in pages for one in page.get("Contents", ())]
        return [name for name in names if name not in (mutex.LOCK, sums.NAME)]

    def put(self, path: str, source: Path, sha256: str) -> None:
        with source.open("rb") as file:
            # S3 compares the bytes that come with the checksum, and never puts them in another object's place.
            self._put(path, file, IfNoneMatch="*", ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode())

    def write(self, path: str, data: bytes) -> None:
        kinds = {".html": "text/html; charset=utf-8", ".json": "application/json"}
        self._put(
            path, data, ContentType=kinds.get(Path(path).suffix, "binary/octet-stream"), ChecksumAlgorithm="SHA256"
        )

    def _put(self, path: str, body: Any, **options: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.prefix + path, Body=body, **options)

    @staticmethod
    def _code(error: Any) -> str:
        return str(error.response.get("Error", {}).get("Code", ""))

    @contextmanager
    def _explain(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise MachineLacks(
                f"{self} cannot be written: {first_line(error)}.",
                fix="Check the bucket's name, and what the AWS_* variables or ~/.aws name; then run the same command again.",
            ) from error


class Server:
    """A server that indexes what it is given, by py-rattler-build's uploaders. They take logins from the keyring or
    RATTLER_AUTH_FILE; an API key may also stand in the environment. None is printed.

    :param kind: anaconda, prefix or quetz: those of its servers that refuse a name that they have.
    :param channel: the url by which clients know it.
    """

    def __init__(self, kind: str, channel: str, url: str, owner: str, label: str = "") -> None:
        self.kind, self.channel, self.url, self.owner, self.label = kind, channel, url, owner, label

    def __str__(self) -> str:
        return self.channel

    @property
    def variable(self) -> str:
        """The environment variable that may hold the key, as rattler-build names it."""
        return f"{self.kind.upper()}_API_KEY"

    def find_records(self, names: Collection[str]) -> tuple[dict[str, dict], list[str]]:
        """{subdir/file name: record} of the packages of these names that the server has; a note where it cannot be asked."""
        import rattler

        try:
            found = asyncio.run(
                rattler.Gateway(client=rattler.Client.authenticated_client()).query(
                    [rattler.Channel(self.channel)],
                    [rattler.Subdir(one) for one in channels.SUBDIRS],
                    list(names),
                    recursive=False,
                )
            )
        except Exception as error:  # rattler's gateway raises of all kinds
            why = first_line(error)
            return {}, [f"Not checked: what {self} has already ({why}). It refuses names that it has."]
        records = {}
        for one in (one for some in found for one in some):
            records[f"{one.subdir}/{one.file_name}"] = {
                "name": one.name.normalized,
                "version": str(one.version),
                "build": str(one.build),
                "build_number": one.build_number,
                "depends": list(one.depends),
                "sha256": one.sha256.hex() if one.sha256 else None,
            }
        return records, []

    def upload(self, file: Path) -> None:
        """Send one archive; never in another one's place.

        :raises MachineLacks: the server does not take it.
        """
        from rattler_build import upload

        key = os.environ.get(self.variable) or None
        sent = [str(file)]
        try:
            if self.kind == "anaconda":
                labels = [self.label] if self.label else None
                upload.upload_package_to_anaconda(sent, self.owner, channel=labels, api_key=key, force=False)
            elif self.kind == "prefix":
                upload.upload_package_to_prefix(
                    sent, self.url, self.owner, api_key=key, skip_existing=False, force=False
                )
            else:
                upload.upload_package_to_quetz(sent, self.url, self.owner, api_key=key)
        except Exception as error:  # the uploaders have one class, and pyo3's panics another
            said = str(error).replace(key, "***") if key else str(error)
            raise MachineLacks(
                f"{self} did not take {file.name}.",
                fix=f"Log in with `pixi auth login`, or set {self.variable}; then run the same command again.",
                log="\n".join(said.splitlines()[:20]),
            ) from error


Target = Folder | Bucket | Server


def _open_folder(path: Path) -> Folder:
    """A folder by its own name, where a symbolic link names it: files are written into it, and it is never moved."""
    return Folder(path.resolve() if path.is_symlink() else path.absolute())


def open_target(text: str) -> Target:
    """The target that a text names: a folder, ``\\\\server\\share\\folder``, ``file://``, ``s3://BUCKET/PATH``, and as
    rattler-build has them ``https://anaconda.org/OWNER[/LABEL]``, ``https://prefix.dev/CHANNEL`` and ``quetz://HOST/CHANNEL``.

    :raises BadInput: it names none, or has a secret in it.
    """
    from .lock import holds_secret

    if os.name != "nt" and text.startswith("\\\\"):
        raise BadInput(f"{text} is a share of Windows.", fix="Mount it, and name the folder where it is.")
    if "://" not in text:
        return _open_folder(Path(text))
    if holds_secret(text):
        raise BadInput(
            f"{addresses.hide_secrets(text)} has a user, a password or a token in it.",
            fix="Leave it out: logins are read from the environment and the keyring.",
        )
    parts = urlsplit(text)
    names = [one for one in parts.path.split("/") if one]
    if parts.scheme == "file":
        return _open_folder(addresses.to_path(text))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, "/".join(names))
    host = f"https://{parts.netloc}"
    if parts.netloc == "anaconda.org" and len(names) in (1, 2):
        label = names[1] if len(names) == 2 else ""
        address = f"https://conda.anaconda.org/{names[0]}" + (f"/label/{label}" if label else "")
        return Server("anaconda", address, host, names[0], label)
    if parts.netloc == "prefix.dev" and len(names) == 1:
        return Server("prefix", f"{host}/{names[0]}", host, names[0])
    if parts.scheme == "quetz" and len(names) == 1:
        return Server("quetz", f"{host}/get/{names[0]}", host, names[0])
    raise BadInput(
        f"{addresses.hide_secrets(text)} is no place to publish to.",
        fix="Name a folder or share, s3://BUCKET/PATH, https://anaconda.org/OWNER, https://prefix.dev/CHANNEL or "
        "quetz://HOST/CHANNEL.",
    )
