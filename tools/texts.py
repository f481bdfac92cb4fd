"""The texts that can be translated, and the catalogue of their translations.

`make generate` adds new texts to the catalogue without a translation, drops texts that are gone,
and compiles the catalogue. A translator edits the file `.po` only; a test finds texts without a
translation.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import typer.main
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from sparrowmq.cli.language import help_texts
from sparrowmq.cli.main import COMMANDS, build_app
from sparrowmq.cli.output import title_of
from sparrowmq.cli.rebalance_view import COLUMN_MEANINGS, COST_COLUMNS, SHARE_COLUMNS
from sparrowmq.cli.top import COLUMNS, ORDERS
from sparrowmq.dash import web
from sparrowmq.doctor import RULES, Severity
from sparrowmq.doctor.owner_history import DURATION_TITLES
from sparrowmq.doctor.workloads import WORKLOADS, Policy
from sparrowmq.drills.drill import SCRIPTS
from sparrowmq.protocol.bodies import SENT_AGAIN
from sparrowmq.words.catalog import DOMAIN, LOCALE

ROOM = Path(web.__file__).parent.parent
# Functions whose first argument is a text.
SAYING = ("Phrase", "words", "words()", "self")
# Functions whose second argument is a noun, which stands in both its forms.
COUNTERS = ("count_of", "words.count", "words().count")
NAMED = ("title", "empty", "button", "note")
# The rooms whose texts are translated.
TRANSLATED = ("words", "doctor", "dash", "cli")
# Texts that are chosen by a value.
CHOSEN = {
    *(name for _, name in (*web.PAGES, web.ACCOUNTS)),
    *web.THEMES,
    *(severity.name.lower() for severity in Severity),
    *(text for script in SCRIPTS.values() for text in (script.story, script.cure) if text),
    *(f"starting a broker and {script.member_count} members" for script in SCRIPTS.values()),
    *("sent", "committed", "rolled back", "consumed"),
    *("reset", "set", "copied", SENT_AGAIN, "made", "settings", "deleted"),
    "the doctor looks",
    *DURATION_TITLES,
    *("moved (of these needless)", "largest − smallest share", "idle members"),
    *("owned by nobody", "owned by several"),
    *("before", "after", "who owned what, from the event on", "the doctor says"),
    *(*SHARE_COLUMNS, *COST_COLUMNS, COLUMN_MEANINGS),
    *(each.meaning for each in WORKLOADS),
    *(*(column.key for column in COLUMNS), *ORDERS),
    "This is not the password.",
    *("yes", "no", "sent as it is"),
    "rocketmq",
    "rocketmq 5",
    "kafka 4",
    *(each.value for each in (Policy.ORACLE, Policy.MESSAGE)),
    "sparrowmq",
    "kafka",
    "; ",
    # Typer's own.
    *("Arguments", "Options", "Show this message and exit.", "default: {default}", "required"),
}
WIDTH = 98


def find_texts() -> set[str]:
    """Return every text that people may read in their language."""
    found = set(CHOSEN)
    for room in TRANSLATED:
        for path in sorted((ROOM / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                found |= set(_texts_at(node))
    found |= {each.summary for each in COMMANDS.values()}
    found |= set(help_texts(typer.main.get_command(build_app())))
    for path in sorted((ROOM / "dash/templates").glob("*.html")):
        with path.open("rb") as file:
            for _, name, given, _ in babel_extract(file, ("_", "count_of"), (), {}):
                parts = given if isinstance(given, tuple) else (given,)
                for text in parts:
                    if text:
                        found |= set(_forms(text)) if name == "count_of" else {text}
    return found


def _texts_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in NAMED and node.value:
        yield from _constants(node.value)
    if not isinstance(node, ast.Call):
        return
    name = ast.unparse(node.func)
    if name in SAYING and node.args:
        yield from _constants(node.args[0])
    if name.endswith(("TableColumn", "OutputColumn", "Field")) and len(node.args) > 1:
        yield from _constants(node.args[1])
    elif name in ("OutputColumn", "columns_of"):
        # Without a title, the key is the title.
        yield from (title_of(key) for each in node.args for key in _constants(each))
    if name in COUNTERS:
        for noun in _constants(node.args[1]):
            yield from _forms(noun)
    for each in node.keywords:
        if each.arg in NAMED:
            yield from _constants(each.value)


def _constants(node: ast.expr) -> Iterator[str]:
    """Return the text, or both texts of a choice."""
    if isinstance(node, ast.IfExp):
        yield from _constants(node.body)
        yield from _constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip():
        yield node.value


def _forms(noun: str) -> tuple[str, str]:
    return f"{{n}} {noun}", f"{{n}} {noun}s"


def make_catalogs() -> Iterator[tuple[Path, bytes]]:
    """Make every catalogue, and the compiled file that programs read."""
    texts = find_texts()
    for path in sorted(LOCALE.glob(f"*/LC_MESSAGES/{DOMAIN}.po")):
        with path.open("rb") as file:
            old = read_po(file)
        new = Catalog(
            locale=old.locale,
            header_comment=old.header_comment,
            fuzzy=False,
            project=DOMAIN,
            creation_date=old.creation_date,
            revision_date=old.revision_date,
            last_translator=old.last_translator,
            language_team=old.language_team,
        )
        for text in sorted(texts, key=lambda text: (text.lower(), text)):
            message = old.get(text)
            new.add(text, message.string if message else "")
        for rule in sorted(RULES):
            message = old.get(rule, "remedy")
            new.add(rule, message.string if message else "", context="remedy")
        written, compiled = io.BytesIO(), io.BytesIO()
        write_po(written, new, width=WIDTH, no_location=True)
        write_mo(compiled, new)
        yield path, written.getvalue()
        yield path.with_suffix(".mo"), compiled.getvalue()
