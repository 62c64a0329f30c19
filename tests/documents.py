"""What a document promises, and what of it does not hold: commands, files, links, addresses, translations."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from unittest import mock
from urllib.parse import unquote

import click
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dswin.cli import dswin
from dswin.solver import VIRTUAL

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = yaml.safe_load((ROOT / "recipe" / "conda_build_config.yaml").read_text(encoding="utf-8"))["ds_variant"]

#: How the command line is called: in sh, in cmd and PowerShell, in PowerShell alone, and where it is installed.
SPELLINGS = ("scripts/dswin.sh", "scripts\\dswin.cmd", ".\\scripts\\dswin.cmd", "dswin")
#: Options whose value is made by the command.
MAKES = ("--out", "--report", "--prefix", "-p", "-n", "--json", "--plot")
#: What documents name and a clone does not have: made by a command, or the reader's own.
MADE = (
    "channel",
    ".venv",
    ".dswin",
    ".condarc",
    "env",
    "folder",
    "build.log",
    "mirrors.toml",
    "README.txt",
    "report.json",
)
#: Endings by which a word without a slash is a file's name.
FILES = (".py", ".yml", ".yaml", ".toml", ".md", ".log", ".sh", ".cmd", ".bat", ".patch", ".json", ".txt")
#: Options of other programs that documents name alone.
FOREIGN_OPTIONS = {"--freeze-installed": "conda", "--variants": "conda-build"}

REGISTRIES = re.compile(
    r"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs|npmmirror|debian|golang)\.(?:org|com|net|io|cn)\b", re.IGNORECASE
)
_HERE = re.compile(r"(?<![\w.:/~\\])/(?:tmp|root|home|work|opt|mnt|srv|workspace)/[\w.]")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_-]*(\.[a-z]+)?")


@dataclass(frozen=True)
class Block:
    """A block of commands.

    :param line: the number of its first line in the document.
    """

    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """What a reader sees of a Markdown document."""

    path: Path
    text: str
    blocks: tuple[Block, ...]
    spans: tuple[tuple[int, str], ...]
    links: tuple[tuple[int, str], ...]
    headings: tuple[tuple[int, str], ...]
    tables: tuple[int, ...]

    @property
    def anchors(self) -> list[str]:
        """The names that GitHub gives to the headings."""
        seen: dict[str, int] = {}
        names = []
        for _, title in self.headings:
            name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            names.append(f"{name}-{seen[name]}" if name in seen else name)
            seen[name] = seen.get(name, 0) + 1
        return names


def read(path: Path) -> Document:
    """Read a document.

    :raises OSError: it cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    blocks, spans, links, headings, tables = [], [], [], [], []
    for number, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("code_block", "fence"):
            first = line + (token.type == "fence")
            blocks.append(Block(first, tuple(token.content.rstrip("\n").split("\n"))))
        elif token.type == "heading_open":
            headings.append((int(token.tag[1:]), _plain(tokens[number + 1])))
        elif token.type == "table_open":
            tables.append(0)
        elif token.type == "tr_open":
            tables[-1] += 1
        elif token.type == "inline":
            for child in token.children or ():
                if child.type == "code_inline":
                    spans.append((line, child.content))
                elif child.type in ("link_open", "image"):
                    links.append((line, str(child.attrs.get("href") or child.attrs.get("src"))))
    return Document(path, text, tuple(blocks), tuple(spans), tuple(links), tuple(headings), tuple(tables))


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))


def find_faults(document: Document) -> list[str]:
    """What does not hold of a document, each with its line."""
    faults = [*_check_blocks(document), *_check_spans(document), *_check_links(document), *_check_addresses(document)]
    path = document.path
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return [f"{name}:{line}: {what}" for line, what in sorted(set(faults))]


def _check_blocks(document: Document) -> Iterator[tuple[int, str]]:
    for block in document.blocks:
        for number, text in enumerate(block.lines, block.line):
            code, comment = split_comment(text)
            if comment and code.startswith("scripts\\dswin.cmd"):
                yield number, f"cmd has no # comments: {text.strip()}"
            if re.search(r"\S {3,}\S", code):
                yield number, f"words for people have a # before them: {text.strip()}"
            # A comment that shows a command, as `(Windows: scripts\dswin.cmd build)` and `COMMAND | scripts/dswin.sh explain`.
            quoted = re.findall(r"(?:\(Windows: |\| )((?:scripts[/\\])[^)]*)", comment)
            for line in (code, *quoted):
                for words in split_commands(line):
                    for what in check_command(words, document.path.parent):
                        yield number, what


def _check_spans(document: Document) -> Iterator[tuple[int, str]]:
    folder = document.path.parent
    for line, text in document.spans:
        commands = list(split_commands(text))
        words = commands[0] if commands else []
        if not words:
            continue
        first = dswin.commands.get(words[0])
        if words[0] in SPELLINGS or (_is_python(words[0]) and len(words) > 1):
            faults = [what for one in commands for what in check_command(one, folder, mention=True)]
        elif len(words) > 1 and (isinstance(first, click.Group) or (first and words[1].startswith("-"))):
            faults = list(check_command(["dswin", *words], folder, mention=True))
        elif words[0].startswith("--"):
            known = words[0].split("=")[0] in list_options() | FOREIGN_OPTIONS.keys()
            faults = [] if known else [f"no command has the option {words[0]}"]
        else:
            faults = [what for word in words for what in _check_path(word, folder, strict=False)]
        for what in faults:
            yield line, what


def _check_links(document: Document) -> Iterator[tuple[int, str]]:
    for line, link in document.links:
        if "://" in link or link.startswith("mailto:"):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = document.path.parent / place if place else document.path
        if not target.exists():
            yield line, f"the link {link} leads to no file"
        elif anchor and (target.suffix != ".md" or anchor not in read(target).anchors):
            yield line, f"the link {link} leads to no heading"


def _check_addresses(document: Document) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(document.text.split("\n"), 1):
        for found in REGISTRIES.findall(text):
            yield number, f"{found} is the host of a package registry: say its name"
        if found := _HERE.search(text) or re.search(re.escape(str(ROOT)) + r"\b", text):
            yield number, f"{found[0]} is a path of one machine"


# ---- commands


def split_comment(line: str) -> tuple[str, str]:
    """A line without its comment, and the comment."""
    found = re.match(r"((?:\"[^\"]*\"|'[^']*'|[^\"'#]|(?<=\S)#)*)(?:#(.*))?$", line)
    return (found[1].strip(), (found[2] or "").strip()) if found else (line.strip(), "")


def split_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of sh, cmd or PowerShell, as words; what stands for something, `a|b`, is one word.

    Continuation, redirection and expansion are not looked at.
    """
    windows = "\\" in line
    lexer = shlex.shlex(line, posix=not windows, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|"):
                if words:
                    yield words
                words = []
            else:
                words.append(word.strip("\"'") if windows else word)
    except ValueError:  # a quotation mark in words for people: not a command
        words = line.split()
    while words and re.fullmatch(r"do|then|else|exec|\$|>|\w+=\S*", words[0]):
        words = words[1:]
    if words:
        yield words


def check_command(words: Sequence[str], folder: Path, *, mention: bool = False) -> Iterator[str]:
    """What is wrong with one command of a document.

    :param folder: where paths start, besides the root of the repository.
    :param mention: it need not be complete.
    """
    line = " ".join(words)
    program = words[0]
    if re.search(r"dswin(\.\w+)?$", program):
        if program not in SPELLINGS:
            yield f"{program} is none of {', '.join(SPELLINGS)}"
            return
        if fault := parse(words[1:], mention=mention):
            yield f"{line}: {fault}"
    for number, word in enumerate(words, 1):
        if _is_python(word):  # conda run ... python FILE
            yield from _check_python(words[number:])
    before = ""
    for word in words:
        option, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if option not in MAKES and program != "cd":
            yield from (f"{line}: {what}" for what in _check_path(value, folder, strict=True))
        before = word if word.startswith("-") else ""


def parse(words: Sequence[str], *, mention: bool = False) -> str:
    """What click says of a command line of dswin; nothing is executed.

    :return: the fault, or nothing.
    """
    words = [_fill(word) for word in words]
    given: dict[str, object] = {}

    def note(command: click.Command, context: click.Context) -> None:
        given.update(context.params)

    output = io.StringIO()
    try:
        with (
            mock.patch.object(click.Command, "invoke", note),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            dswin.main(args=list(words), prog_name="dswin", standalone_mode=False)
    except click.MissingParameter as error:
        return "" if mention else error.format_message()
    except click.exceptions.NoArgsIsHelpError:
        return "" if mention else "a command is missing"
    except click.ClickException as error:
        return error.format_message()
    variants = given.get("variants") or (given["variant"],) if given.get("variant") or given.get("variants") else ()
    for name, known, values in (("variant", VARIANTS, variants), ("target", VIRTUAL, (given.get("target") or "",))):
        for value in values:
            if value and value not in known:
                return f"there is no {name} {value}"
    return ""


def _fill(word: str) -> str:
    """A placeholder for a choice is anything; `a|b` is its first."""
    return word.split("|")[0] or word


def list_options() -> set[str]:
    """The options of all commands of dswin."""

    def walk(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        if isinstance(command, click.Group):
            for one in command.commands.values():
                yield from walk(one)

    return set(walk(dswin))


def _is_python(program: str) -> bool:
    return re.search(r"(^|[/\\])python[\d.]*(\.exe)?$", program) is not None


def _check_python(words: Sequence[str]) -> Iterator[str]:
    if not words or not words[0].endswith(".py"):
        return
    file = ROOT / words[0].replace("\\", "/")
    if file.is_file():  # else the paths say so
        text = file.read_text(encoding="utf-8")
        for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
            if f'"{option}"' not in text:
                yield f"{words[0]} has no option {option}"


def _check_path(word: str, folder: Path, *, strict: bool) -> Iterator[str]:
    """Whether a word is a path in the repository that is not there.

    :param strict: each relative path counts, and not only one whose first folder is there.
    """
    path = word.lstrip("\"'(").rstrip("\"'.,:;)").replace("\\", "/")
    if re.search(r"[$:*<>{}=\[\]`@ ]|\.\.\.", path) or path.startswith(("/", "~", "-", "//")) or not path:
        return
    parts = PurePosixPath(path).parts
    if not ("/" in path or path.endswith(FILES)) or not parts:
        return
    if parts[0] in MADE or parts[-1] in MADE or any(_PLACEHOLDER.fullmatch(part) for part in parts):
        return
    if any((base / path).exists() for base in (ROOT, folder)):
        return
    starts = [base for base in (ROOT, folder) if "/" in path and (base / parts[0]).is_dir()]
    if strict or starts:
        yield f"there is no {path}"


# ---- translations


def compare(original: Document, translation: Document) -> list[str]:
    """What a translation has other than the original: headings, commands, tables, where links lead."""

    def commands(document: Document) -> list[str]:
        return [code for block in document.blocks for line in block.lines if (code := split_comment(line)[0])]

    def targets(document: Document) -> list[str]:
        return sorted(
            {link.partition("#")[0] for _, link in document.links} - {one.path.name for one in (original, translation)}
        )

    faults = []
    for what, ours, theirs in (
        (
            "levels of the headings",
            [level for level, _ in original.headings],
            [level for level, _ in translation.headings],
        ),
        ("commands", commands(original), commands(translation)),
        ("blocks of commands", len(original.blocks), len(translation.blocks)),
        ("rows of the tables", list(original.tables), list(translation.tables)),
        ("files that links lead to", targets(original), targets(translation)),
    ):
        if ours != theirs:
            faults.append(
                f"{translation.path.name}: the {what} are not those of {original.path.name}: {_differ(ours, theirs)}"
            )
    return faults


def _differ(ours: object, theirs: object) -> str:
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs: Iterable[tuple[object, object]] = zip([*ours, "nothing"], [*theirs, "nothing"], strict=False)
        ours, theirs = next((pair for pair in pairs if pair[0] != pair[1]), (len(ours), len(theirs)))
    return f"{theirs!r} for {ours!r}"
