"""Rows as text: contract/README.md says what each part means."""

import re
import time
from pathlib import Path


class Row:
    """A file: cases of (name, values, steps), a step being (line, text, expected)."""

    def __init__(self, path: Path):
        self.path = path
        head, _, body = path.read_text().partition("\n\n")
        faces = re.search(r"^faces: ([^;\n]*)", head, re.M)
        self.faces = faces[1].split() if faces else []
        self.cases = [("", [""], [])]
        for number, line in enumerate(body.split("\n"), head.count("\n") + 3):
            steps = self.cases[-1][2]
            if not line or line.startswith("#"):
                continue
            if line.startswith("  "):
                steps[-1][2].append(line[2:])
            elif line.startswith("case "):
                each = re.fullmatch(r"case (\S+) in (.*)", line)
                self.cases.append((each[1], each[2].split(), []) if each else ("", [""], []))
            else:
                steps.append((number, line, []))

    def run(self, machine):
        """What is wrong, or nothing."""
        for name, values, steps in self.cases:
            for value in values:
                names, world = {name: value}, machine()
                try:
                    for number, text, expected in steps:
                        try:
                            wrong = step(world, text, expected, names)
                        except Exception as error:  # a step that cannot be run has failed
                            wrong = f"{type(error).__name__}: {error}"
                        if wrong:
                            return f"{self.path}:{number}: {text} ({value})\n{wrong}"
                finally:
                    world.close()
        return None


def step(world, text, expected, names):
    text = with_names(text, names)
    kept = re.fullmatch(r"let (\w+) = (.*)", text)
    awaited = text.removeprefix("eventually ")
    run = lambda: [line for one in each(kept[2] if kept else awaited) for line in world.run(words(one))]
    printed, end = run(), time.monotonic() + 60
    if kept:
        (names[kept[1]],) = printed
        return None
    lines = [word for line in expected for one in each(with_names(line, names)) for word in braces(one)]
    while awaited != text and not matches(lines, printed) and time.monotonic() < end:
        printed = run()
    return None if matches(lines, printed) else difference(lines, printed)


def computed(value, by):
    if not by:
        return value
    operand = int(by[1:])
    return str({"+": int(value) + operand, "-": int(value) - operand, "%": int(value) % operand}[by[0]])


def with_names(text, names):
    return re.sub(r"\$([A-Za-z0-9]+)([-+%]\d+)?", lambda found: computed(names[found[1]], found[2]), text)


def each(text):
    """`each A..B TEXT` is TEXT for each number, `TEXT ; TEXT` one after the other."""
    found = re.fullmatch(r"each (\d+)\.\.(\d+) (.*)", text)
    if not found:
        return [text]
    numbers = range(int(found[1]), int(found[2]) + 1)
    steps = [re.sub(r"#([-+%]\d+)?", lambda by: computed(str(number), by[1]), found[3]) for number in numbers]
    return [one for step in steps for one in step.split(" ; ")]


def braces(word):
    """`a{08..10}b` is three words, `a{x*3}b` is axxxb."""
    word = re.sub(r"\{([^{}]*)\*(\d+)\}", lambda found: found[1] * int(found[2]), word)
    found = re.search(r"\{(\d+)\.\.(\d+)\}", word)
    if not found:
        return [word]
    numbers = range(int(found[1]), int(found[2]) + 1)
    begin, ends = word[: found.start()], braces(word[found.end() :])
    return [f"{begin}{number:0{len(found[1])}}{end}" for number in numbers for end in ends]


def words(text):
    found = re.findall(r'"[^"]*"|[^ ]+', text)
    return [part for word in found for part in ([word[1:-1]] if word[0] == '"' else braces(word))]


def matches(expected, printed):
    """`...` stands for any lines."""
    for at, line in enumerate(expected):
        if line == "...":
            rest = expected[at + 1 :]
            return any(matches(rest, printed[skipped:]) for skipped in range(at, len(printed) + 1))
        if at == len(printed) or printed[at] != line:
            return False
    return len(expected) == len(printed)


def difference(expected, printed):
    """Lines that are in one of the two, between those that both begin and end with."""
    same = 0
    while same < min(len(expected), len(printed)) and expected[same] == printed[same]:
        same += 1
    expected, printed = expected[same:], printed[same:]
    while expected and printed and expected[-1] == printed[-1]:
        expected, printed = expected[:-1], printed[:-1]
    lines = [f"  {same} lines are as expected"] + [f"- {line}" for line in expected] + [f"+ {line}" for line in printed]
    return "\n".join(lines)


def to_bytes(word):
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), word.encode())


def to_word(data):
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in data)
