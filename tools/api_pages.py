# SPDX-License-Identifier: Apache-2.0
"""The API reference: a page per module from the comments of the public headers, as a hook of mkdocs.

A comment and the declarations under it stay together, for many comments are about several of them. What a
caller does not see goes: private sections, bodies, `detail`. A type, function or constant without a comment
is a warning, which ./dev docs counts as an error.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
FOLDER = "reference/api"

TAGS = {"collective": "Collective", "blocks": "Blocks", "memory": "Memory", "throws": "Throws", "returns": "Returns"}
TYPE = re.compile(r"\s*(?:template <.*?>\s*)?(?:class|struct|enum|union)\b(?![^;{]*\()")
FORWARD = re.compile(r"(?:template <.*>\s*)?(?:class|struct|enum class) [\w:]+(?: : [\w:]+)?;")
NAME = re.compile(
    r"#define (\w+)|\b(?:class|struct|enum class|enum|concept|using)\s+(?:\[\[\w+\]\]\s+)?(\w+)|"
    r"(operator[^\s(]+|\w+)\s*\(|(\w+)\s*(?:=|;|\{|\[)"
)
UNNAMED = re.compile(r"\[\[.*?\]\]|\btemplate <[^\n]*>\s|\brequires requires[^{]*\{.*?\}\s|\brequires .*\n")
SKIPPED = r'//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''  # comments and strings
log = logging.getLogger("mkdocs.hooks.api")


# A header as declarations ------------------------------------------------------------------------------


@dataclass
class Item:
    line: int
    comment: list  # its lines, without the slashes
    code: str  # as a caller sees it; empty for a comment of its own
    is_apart: bool  # an empty line stands in front


def closing(text, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for token in re.compile(SKIPPED + r"|[{}()]").finditer(text, at):
        if token[0] in "({":
            depth += 1
        elif token[0] in ")}":
            depth -= 1
            if depth == 0:
                return token.start()
    raise ValueError(f"unbalanced: {text[at : at + 60]}")


def statement(text, at):
    """(end, code) of the declaration at `at`, without a function's body and a constructor's list."""
    begin, place, listed = at, at, None
    while True:
        token = re.compile(SKIPPED + r"|[{(;]|\)[\w\s]*:(?!:)").search(text, place)
        if token[0] == ";":
            return token.end(), text[begin : token.end()]
        if token[0] == "(":
            place = closing(text, token.start()) + 1
            after = re.compile(r"(?:\s*(?:const|noexcept))*\s*:(?!:)").match(text, place)
            if after and listed is None:
                listed = place + re.match(r"(?:\s*(?:const|noexcept))*", text[place:]).end()
        elif token[0] == "{":
            end = closing(text, token.start())
            if TYPE.match(text[begin : token.start()]):
                inner = inside(text[token.end() : end], text[begin : token.start()])
                tail, rest = statement(text, end + 1)
                return tail, text[begin : token.end()] + inner + "}" + rest
            if re.search(r"\brequires\s*(?:\([^{]*\))?\s*$", text[begin : token.start()]):
                place = end + 1
                continue
            if text[end + 1 :].lstrip()[:1] not in (";", ",", ")", "{"):
                return end + 1, text[begin : listed or token.start()].rstrip() + ";"
            place = end + 1
        else:
            place = token.end()


def inside(text, head):
    """The body of a type: what is public or protected, or all names of an enumeration."""
    if re.search(r"\benum\b", head):
        return text
    head = re.sub(r"\btemplate <.*?>\s", "", head)
    out, is_private = [], re.search(r"\bclass\b", head) is not None
    for item in items(re.sub(r"^  ", "", text, flags=re.MULTILINE)):
        label = re.fullmatch(r"(public|protected|private):", item.code)
        if label:
            is_private = label[1] == "private"
        if is_private or (label and not out and re.search(r"\bstruct\b", head)):
            continue
        if item.is_apart and out:
            out.append("")
        indent = " " if label else "  "
        out += [f"  ///{line}" for line in item.comment]
        out += [indent + line if line else "" for line in item.code.split("\n")]
    return "\n" + "\n".join(out) + "\n" if out else ""


def items(text, line=1):
    """The declarations of a scope in their order; namespaces are looked through, `detail` is not."""
    at, comment, started, is_apart = 0, [], line, False
    while at < len(text):
        space = re.compile(r"\s*").match(text, at)
        if space[0].count("\n") > 1:
            if comment:
                yield Item(started, comment, "", is_apart)
                comment = []
            is_apart = True
        at = space.end()
        if at == len(text):
            break
        if not comment:
            started = line + text.count("\n", 0, at)
        rest = text[at : text.find("\n", at)] if "\n" in text[at:] else text[at:]
        label = re.match(r"(?:public|protected|private):", rest)
        if rest.startswith("///"):
            comment.append(rest[3:])
            at += len(rest)
            continue
        if rest.startswith(("//", "}")) or re.match(r"#(?!define)", rest):
            at += len(rest)
            continue
        if re.match(r"namespace\b", rest):
            start = text.index("{", at)
            end = closing(text, start)
            if not re.match(r"namespace (?:[\w:]+::)?(?:detail )?\{", rest) or "detail" not in rest:
                yield from items(text[start + 1 : end], line + text.count("\n", 0, start))
            at, comment, is_apart = end + 1, [], False
            continue
        if rest.startswith("#define"):
            end = re.compile(r"(?:[^\n]*\\\n)*[^\n]*").match(text, at).end()
            code = re.match(r"#define \w+(?:\([^)]*\))?", rest)[0]
        elif label:
            end, code = at + label.end(), label[0]
        else:
            end, code = statement(text, at)
        trailing = re.compile(r" *//[^\n]*(?:\n *///<[^\n]*)*").match(text, end)
        if trailing:
            end, code = trailing.end(), code + trailing[0]
        if not FORWARD.fullmatch(code):
            yield Item(started, comment, code, is_apart)
        at, comment, is_apart = end, [], False


def groups(found):
    """Declarations that follow each other without an empty line or a comment share the first one's."""
    group = []
    for item in found:
        if group and (item.is_apart or item.comment):
            yield group
            group = []
        if item.code:
            group.append(item)
    if group:
        yield group


# Pages ------------------------------------------------------------------------------------------------


def prose(comment):
    """A comment as Markdown: tags as a list, signs as they are, examples as code."""
    out, code, is_tag = [], [], False
    for line in [*comment, ""]:
        if line.startswith("     ") or (code and not line.strip()):
            code.append(line[5:])
            continue
        if code:
            out += ["", "```cpp", *"\n".join(code).strip("\n").split("\n"), "```", ""]
            code = []
        is_tag = is_tag and line != ""
        line = re.sub(r"([<\[\]])", r"\\\1", line.strip())
        before, *tags = re.split(r"@(\w+)", line)
        if before or not tags:
            out.append(("  " if is_tag else "") + before.rstrip())
        for tag, text in zip(tags[::2], tags[1::2], strict=True):
            out += [] if is_tag else [""]
            out.append(f"* **{TAGS.get(tag, tag)}**{text.rstrip()}")
            is_tag = True
    if code:
        out += ["", "```cpp", *"\n".join(code).strip("\n").split("\n"), "```"]
    return "\n".join(out).strip()


def lead(text):
    """What a header says of itself, in front of its first line of code."""
    lines = []
    for line in text.split("\n")[1:]:
        if not line.startswith("///"):
            break
        lines.append(line[3:])
    return lines


def names(group):
    found = []
    for item in group:
        match = NAME.search(re.sub(SKIPPED, "", UNNAMED.sub("", item.code)))
        name = next(part for part in match.groups() if part)
        found += [] if name in found else [name]
    return found


def page(module, headers):
    text, index = [f"# API: {module}\n"], []
    for header in headers:
        source = header.read_text()
        place = header.relative_to(INCLUDE).as_posix()
        text.append(f'## {header.name}\n\n```cpp\n#include "{place}"\n```\n\n{prose(lead(source))}\n')
        start = source.index("#pragma once")
        for group in groups(items(source[start:], source.count("\n", 0, start) + 1)):
            known = names(group)
            title = ", ".join(known)
            if not group[0].comment and not group[0].code.startswith("template <>"):
                log.warning("include/%s:%d: %s has no comment", place, group[0].line, title)
            code = "\n".join(item.code for item in group)
            text.append(f"### {title}\n\n{prose(group[0].comment)}\n\n```cpp\n{code}\n```\n")
            index += [(name, module, title) for name in known]
    return "\n".join(text), index


def pages():
    """Path in docs/ -> text, the index first."""
    found, index = {}, []
    modules = {}
    for header in sorted(INCLUDE.glob("fsdp/*/*.hpp")):
        modules.setdefault(header.parent.name, []).append(header)
    for module, headers in modules.items():
        found[f"{FOLDER}/{module}.md"], of_module = page(module, headers)
        index += of_module
    rows = sorted((name.lower(), name, module, title) for name, module, title in index)
    table = "\n".join(f"| [`{name}`]({module}.md#{slug(title)}) | {module} |" for _, name, module, title in rows)
    head = (
        "# API reference\n\nWhat the public headers declare, module by module, from their own comments. "
        "`fsdp/fsdp.hpp` includes what a training program needs.\n\n| name | module |\n|---|---|\n"
    )
    return {f"{FOLDER}/index.md": head + table + "\n", **found}


def slug(title):
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


# Hooks of mkdocs --------------------------------------------------------------------------------------

_pages = {}


def on_config(config):
    _pages.update(pages())
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    place = next(n for n, entry in enumerate(reference) if f"{FOLDER}/index.md" == entry)
    reference[place] = {"API": list(_pages)}
    return config


def on_files(files, config):
    from mkdocs.structure.files import File

    for path, text in _pages.items():
        files.append(File.generated(config, path, content=text))
    return files
