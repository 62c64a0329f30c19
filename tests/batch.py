"""Reads Windows batch files and finds the commands whose failure would go unnoticed.

The grammar is cmd.exe's, as far as scripts of this repository use it: an operator that stands behind the body of IF or
FOR belongs to that body, `a & b || c` is `a & (b || c)`, and `a && b || c` is `(a && b) || c`. Four rules:

unguarded   A command that can fail is followed by `|| exit /b N`, `|| goto :label` or a block that ends so; or it is
            the last one and the script's own status is its status. Robocopy says 1 to 7 when it copied something, so
            it needs a test for 8 and more on the next line. The status of what FOR /F or the left side of a pipe runs
            is lost. A probe, `command && set "NAME=..."`, is guarded by a later `if not defined NAME` that leaves.
stale       %ERRORLEVEL% is replaced when a line or a whole block is read, before anything in it runs.
negative    `if errorlevel N` means N or more: a crashed program's negative status passes.
no call     A batch file that is started without `call` does not come back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

#: Commands of cmd.exe that a script may leave unguarded.
HARMLESS = {"set", "echo", "rem", "goto", "exit", "setlocal", "endlocal"}
#: Programs that are batch files on Windows although they are written without a suffix.
BATCH_PROGRAMS = {"ds_report", "deepspeed", "conda", "mamba", "activate", "deactivate", "vcvarsall", "vsdevcmd"}

STALE = re.compile(r"(?<!%)%errorlevel(:[^%\n]*)?%(?!%)", re.IGNORECASE)
DELAYED = re.compile(r"!errorlevel!", re.IGNORECASE)
REDIRECTION = re.compile(r'\s*\d?(>>|[<>])\s*(&\s*\d|"[^"]*"|[^\s&|<>()]+)')
WORD = re.compile(r'(?:"[^"]*"?|[^\s"])+')


class BatchError(ValueError):
    """A batch file that cmd.exe would not take either, or that is beyond this reader."""


@dataclass(frozen=True)
class Problem:
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.rule}: {self.text}"


@dataclass
class Node:
    line: int
    depth: int  # of parentheses around it


@dataclass
class Command(Node):
    """One command with its arguments and redirections, as written."""

    text: str

    @property
    def words(self) -> list[str]:
        text = self.text
        while found := REDIRECTION.match(text):
            text = text[found.end() :]
        return WORD.findall(text)

    @property
    def name(self) -> str:
        """The program's name or the builtin's, in lower case, without folder and quotes."""
        return name_of(self.words[0]) if self.words else ""

    @property
    def callee(self) -> str:
        """What `call` calls: a name, a label with its colon, or nothing for another command than `call`."""
        if self.name != "call" or len(self.words) < 2:
            return ""
        return self.words[1].lower() if self.words[1].startswith(":") else name_of(self.words[1])

    @property
    def is_harmless(self) -> bool:
        return not self.words or self.name in HARMLESS or self.callee in HARMLESS


@dataclass
class Pair(Node):
    """`left operator right`, for & && || and |."""

    operator: str
    left: Node
    right: Node


@dataclass
class Block(Node):
    statements: list[Node]


@dataclass
class If(Node):
    condition: str
    body: Node
    otherwise: Node | None


@dataclass
class For(Node):
    header: str  # with the set in its parentheses
    command: str  # what FOR /F runs, or nothing
    body: Node


def name_of(word: str) -> str:
    """Return the name of the program or builtin that ``word`` starts, in lower case, without folder and quotes."""
    plain = word.replace('"', "").lower()
    builtin = re.match(r"[a-z]+(?=[./:\\(,;=+<>\[\]]|$)", plain)
    if builtin and builtin[0] in HARMLESS | {"call"} and not plain.endswith((".bat", ".cmd", ".exe", ".com")):
        return builtin[0]
    return re.split(r"[\\/]", re.split(r"[<>,;=]", plain, maxsplit=1)[0])[-1]


# ---- reading


@dataclass
class Reader:
    text: str
    position: int = 0
    depth: int = 0

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    def rest_starts(self, what: str) -> bool:
        return self.text.startswith(what, self.position)

    @property
    def next(self) -> str:
        """The next character, a newline at the end."""
        return self.text[self.position] if self.position < len(self.text) else "\n"

    def skip(self, pattern: str) -> str:
        found = re.compile(pattern, re.IGNORECASE).match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found.group() if found else ""

    def skip_spaces(self) -> None:
        self.skip(r"(?:[ \t,;=]|\^\n)*")

    def next_special(self, stop_at_space: bool = False) -> str:
        """Move to what ends a command (or a word) and return what lies before; quotes, ^ and %A:b=c% hide an end."""
        start = self.position
        quoted = False
        while self.position < len(self.text):
            # At the end of a line ^ hides the newline and the first character of the next line.
            if self.skip(r"%%|%[a-z_][\w.]*:[^%\n]*%") or (not quoted and self.skip(r"\^\n?.|\^\n|[<>]&\s*\d")):
                continue
            ends = "\n" if quoted else "\n&|" + ")" * bool(self.depth) + " \t" * stop_at_space
            if self.next in ends:
                break
            quoted ^= self.next == '"'
            self.position += 1
        return self.text[start : self.position]

    def read_statements(self) -> list[Node]:
        statements: list[Node] = []
        while True:
            self.skip(r"(?:[ \t\n,;=]|\^\n)*")
            if self.position >= len(self.text) or (self.depth and self.next == ")"):
                return statements
            if self.next == ")":
                raise BatchError(f"line {self.line}: a closing parenthesis too many")
            if not self.skip(r"(?::|@?rem(?=\s|$))[^\n]*"):
                statements.append(self.read_pair(0))

    def read_pair(self, level: int) -> Node:
        operators = ["&", "||", "&&", "|"]
        if level == len(operators):
            return self.read_command()
        left = self.read_pair(level + 1)
        self.skip_spaces()
        operator = operators[level]
        if not self.rest_starts(operator) or (len(operator) == 1 and self.rest_starts(operator * 2)):
            return left
        line = self.line
        self.position += len(operator)
        self.skip_spaces()
        if operator == "&" and self.next in "\n)":
            return left
        return Pair(line, self.depth, operator, left, self.read_pair(level))

    def read_command(self) -> Node:
        self.skip(r"(?:[ \t,;=@]|\^\n)*")
        line = self.line
        if self.next in "\n)&|":
            raise BatchError(f"line {line}: a command is missing")
        if self.skip(r"\("):
            depth, self.depth = self.depth, self.depth + 1
            statements = self.read_statements()
            if not self.skip(r"\)"):
                raise BatchError(f"line {line}: this parenthesis is not closed")
            self.depth = depth
            while found := REDIRECTION.match(self.text, self.position):
                self.position = found.end()
            return Block(line, depth, statements)
        if self.skip(r"if(?=[ \t(])"):
            return self.read_if(line)
        if self.skip(r"for(?=[ \t])"):
            return self.read_for(line)
        text = self.skip(r"rem(?=\s|$)[^\n]*") or self.next_special().replace("^\n", " ")
        return Command(line, self.depth, " ".join(text.split()))

    def read_word(self) -> str:
        self.skip_spaces()
        return self.next_special(stop_at_space=True)

    def read_if(self, line: int) -> Node:
        depth = self.depth
        start = self.position
        while self.skip(r"\s*(?:/i|not)(?=\s)"):
            pass
        if self.skip(r"[ \t]*(?:defined|exist|errorlevel|cmdextversion)(?=[ \t])"):
            self.read_word()
        else:
            # a==b is one word for next_special, a == b three, and so on.
            first = self.read_word()
            self.skip(r"[ \t]*")
            if self.skip(r"==|(?:equ|neq|lss|leq|gtr|geq)(?=\s)") or first.endswith("=="):
                self.read_word()
            elif "==" not in first:
                raise BatchError(f"line {line}: no comparison in this if")
        condition = self.text[start : self.position].strip()
        body = self.read_pair(0)
        otherwise = self.read_pair(0) if self.skip(r"[ \t]*else(?=[\s(])") else None
        return If(line, depth, condition, body, otherwise)

    def read_for(self, line: int) -> Node:
        depth = self.depth
        start = self.position
        if not self.skip(r'(?:"[^"\n]*"|[^\n("])*?\sin[ \t]*\('):
            raise BatchError(f"line {line}: this for has no set")
        options = self.text[start : self.position]
        begin = self.position
        self.depth += 1
        while self.position < len(self.text) and self.next != ")":
            self.next_special()
            self.skip(r"[\n&|]+")
        self.depth = depth
        inside = self.text[begin : self.position].strip()
        if not self.skip(r"\)[ \t]*do(?=[ \t(])"):
            raise BatchError(f"line {line}: this for has no do")
        quote = "`" if "usebackq" in options.lower() else "'"
        runs = re.match(r"\s*/f\b", options, re.IGNORECASE) and inside.startswith(quote)
        return For(line, depth, self.text[start : self.position], inside if runs else "", self.read_pair(0))


# ---- judging


def walk(node: Node) -> Iterator[Node]:
    """Give ``node`` and everything below it, in the order in which it would run."""
    yield node
    if isinstance(node, Pair):
        below = [node.left, node.right]
    elif isinstance(node, Block):
        below = node.statements
    elif isinstance(node, If):
        below = [node.body] + ([node.otherwise] if node.otherwise else [])
    else:
        below = [node.body] if isinstance(node, For) else []
    for child in below:
        yield from walk(child)


def leaves(node: Node) -> bool:
    """Say whether ``node`` ends the script with a failure, or jumps, whatever happens."""
    if isinstance(node, Command):
        if node.name == "goto":
            return True
        return bool(re.search(r"^exit\s*(/b\s+)?(-?[1-9]\d*|!errorlevel!)$", node.text.strip("@ "), re.IGNORECASE))
    if isinstance(node, Block):
        return bool(node.statements) and leaves(node.statements[-1])
    if isinstance(node, Pair):
        if node.operator == "&&":
            return isinstance(node.left, Command) and node.left.is_harmless and leaves(node.right)
        return node.operator == "&" and leaves(node.right)
    return False


def handles(node: Node) -> bool:
    """Say whether what stands right of || deals with the failure: it leaves, or is a second attempt that is guarded."""
    return leaves(node) or (isinstance(node, Pair) and node.operator == "||" and handles(node.right))


def passes_status_on(node: Node) -> bool:
    """Say whether ``node`` ends the script with the status of the statement before it."""
    if isinstance(node, Pair) and node.operator == "&" and isinstance(node.left, Command):
        return node.left.name == "endlocal" and passes_status_on(node.right)
    return isinstance(node, Command) and bool(re.fullmatch(r"@?exit\s*(/b\s+)?%errorlevel%", node.text, re.IGNORECASE))


def tests_for_eight(node: Node | None) -> bool:
    """Say whether ``node`` leaves when the status is 8 or more."""
    if not isinstance(node, If):
        return False
    variable = "[!%]" if node.depth == 0 else "!"
    condition = rf'"?{variable}errorlevel{variable}"?\s+(geq\s+"?8|gtr\s+"?7)"?'
    return bool(re.fullmatch(condition, node.condition, re.IGNORECASE)) and leaves(node.body)


def find_tested(statements: list[Node]) -> dict[str, int]:
    """Return {NAME: line} of the last `if not defined NAME` that leaves."""
    tested: dict[str, int] = {}
    for node in (below for statement in statements for below in walk(statement)):
        if isinstance(node, If) and leaves(node.body):
            found = re.fullmatch(r"not\s+defined\s+(\S+)", node.condition, re.IGNORECASE)
            tested |= {found[1].lower(): node.line} if found else {}
    return tested


def is_probe(node: Pair, tested: dict[str, int]) -> bool:
    """Say whether ``node`` is `command && set "NAME=..."` and the absence of NAME is noticed further down."""
    if node.operator != "&&" or not isinstance(node.right, Command):
        return False
    found = re.match(r'set\s+"?(\w+)=', node.right.text, re.IGNORECASE)
    return found is not None and tested.get(found[1].lower(), 0) > node.line


def unguarded(node: Node, guarded: bool, tested: dict[str, int], following: Node | None = None) -> Iterator[Problem]:
    """Give the commands in ``node`` whose failure is lost.

    :param guarded: whether somebody looks at the status of ``node`` as a whole.
    :param tested: what find_tested says of the whole file.
    :param following: the statement on the next line.
    """
    if isinstance(node, Command):
        if node.name.removesuffix(".exe") == "robocopy":
            if not tests_for_eight(following):
                yield Problem(node.line, "unguarded", "robocopy needs a test for 8 and more on the next line")
        elif not guarded and not node.is_harmless:
            yield Problem(node.line, "unguarded", f"a failure goes unnoticed: {node.text}")
    elif isinstance(node, Pair):
        left = {"&&": guarded or is_probe(node, tested), "||": handles(node.right)}.get(node.operator, False)
        if node.operator == "||" and guarded and not leaves(node.right):
            # What is tried second decides the status of both.
            left = left or not (isinstance(node.right, Command) and node.right.is_harmless)
        yield from unguarded(node.left, left, tested)
        # On the way out with a failure nothing more can get lost.
        if node.operator != "||" or not leaves(node.right):
            yield from unguarded(node.right, guarded, tested)
    elif isinstance(node, Block):
        for statement, after in zip_longest(node.statements, node.statements[1:]):
            yield from unguarded(statement, guarded and after is None, tested, after)
    elif isinstance(node, If):
        yield from unguarded(node.body, guarded, tested)
        if node.otherwise:
            yield from unguarded(node.otherwise, guarded, tested)
    elif isinstance(node, For):
        if node.command:
            yield Problem(node.line, "unguarded", f"for /f loses the status of {node.command}")
        # The next round overwrites the status of this one.
        yield from unguarded(node.body, False, tested)


def stale(statement: Node, delayed: bool) -> Iterator[Problem]:
    """Give the places where %ERRORLEVEL% is read too early, or !ERRORLEVEL! without delayed expansion."""
    something_ran = False
    bodies = {id(below) for node in walk(statement) if isinstance(node, For) for below in walk(node.body)}
    for node in walk(statement):
        text = getattr(node, {Command: "text", If: "condition", For: "header"}.get(type(node), ""), "")
        if STALE.search(text) and (node.depth or id(node) in bodies or something_ran):
            since = "block" if node.depth else "loop" if id(node) in bodies else "line"
            yield Problem(node.line, "stale", f"%ERRORLEVEL% is from before this {since}: {text}")
        if DELAYED.search(text) and not delayed:
            yield Problem(node.line, "stale", f"!ERRORLEVEL! without EnableDelayedExpansion is plain text: {text}")
        something_ran = something_ran or (isinstance(node, Command) and not node.is_harmless)


def check(text: str) -> list[Problem]:
    """Return what is wrong with the batch file ``text``, by line.

    :raises BatchError: it cannot be read.
    """
    problems: list[Problem] = []
    delayed = bool(re.search(r"^[@\s]*setlocal\b.*\benabledelayedexpansion\b", text, re.IGNORECASE | re.MULTILINE))
    statements = Reader(text.replace("\r\n", "\n")).read_statements()
    tested = find_tested(statements)
    for statement, after in zip_longest(statements, statements[1:]):
        problems += unguarded(statement, after is None or passes_status_on(after), tested, after)
        problems += stale(statement, delayed)
        for node in walk(statement):
            if isinstance(node, If) and re.match(r"(/i\s+|not\s+)*errorlevel\b", node.condition, re.IGNORECASE):
                problems.append(Problem(node.line, "negative", f"negative statuses pass: if {node.condition}"))
            if isinstance(node, Command) and (node.name.endswith((".bat", ".cmd")) or node.name in BATCH_PROGRAMS):
                problems.append(Problem(node.line, "no call", f"without call it does not come back: {node.text}"))
    return sorted(problems, key=lambda problem: (problem.line, problem.rule))
