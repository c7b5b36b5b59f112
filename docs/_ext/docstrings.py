"""Docstrings as reStructuredText: they are plain text with formulas, which is not markup.

A norm, ||x||, is no substitution, x_i no link, and an indented formula no quotation.
"""

import re

CODE = re.compile(r"(`+[^`]+`+)")
SECTION = re.compile(r"^-{3,}$")


def literal(text):
    """Return text whose code is marked and whose other characters stand for themselves."""
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            behind = parts[i + 1][:1]
            parts[i] = f"``{part.strip('`')}``" + (r"\ " if behind.isalnum() else "")
        else:
            parts[i] = re.sub(r"([\\*|]|_(?!\w)|`)", r"\\\1", part)
    return "".join(parts)


def as_code(kind):
    """Return a type in the docstrings' words: nothing that Sphinx could take for a name."""
    return literal(kind) if "`" in kind else f"``{kind.strip()}``"


def indent_of(line):
    return len(line) - len(line.lstrip())


def marked_up(lines):
    """Return a numpydoc docstring's lines, as reStructuredText."""
    found, block, section = [], None, ""
    for i, line in enumerate(lines):
        text, indent = line.strip(), indent_of(line)
        if block is not None:  # an example, until an empty line; a block, until the indent ends
            ends = not text if block == "example" else bool(text) and indent < block
            if not ends:
                found.append(line)
                continue
            block = None
        following = lines[i + 1].strip() if i + 1 < len(lines) else ""
        if text.startswith(">>>"):
            block = "example"
            found.append(line)
        elif text.endswith("::"):
            block = indent + 1
            found.append(line)
        elif SECTION.match(text) or (SECTION.match(following) and text):
            section = section if SECTION.match(text) else text
            found.append(line)
        elif section and " : " in line and indent == 0:  # a parameter and its type
            name, _, kind = line.partition(" : ")
            found.append(f"{name} : {as_code(kind)}")
        elif section in ("Returns", "Yields") and text and indent == 0:
            found.append(as_code(line))
        elif text and indent >= 4 and not section and (i == 0 or not lines[i - 1].strip()):
            found += ["::", "", line]
            block = indent
        else:
            found.append(line[:indent] + literal(text))
    return found


def _process(app, what, name, obj, options, lines):
    lines[:] = [] if what == "data" else marked_up(lines)  # a dict's own docstring is dict's
    if what in ("attribute", "property"):  # else napoleon takes words before a colon for a type
        lines[:0] = ["..", ""]


def setup(app):
    """Run before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
