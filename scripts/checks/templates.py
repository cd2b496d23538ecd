"""Hostile chat templates and hostile contents: every template ends in time and in words, and no content is obeyed.

    python -m scripts.checks.templates [-n 200] [--seed 0] [--seconds 1]

Three attacks, each with `n` cases made at random from the parts below:

- templates that loop, recurse, grow and fail, in a process with `--seconds` for each;
- templates that reach for Python's internals: whatever they write must not show any;
- contents made of markers, pieces of markers and ordinary text, in the tokenizers of tests/generation/test_encode.py:
  as many control tokens as the template alone has, and the content's own text; and ordinary contents have the same
  ids whether the text is read as a whole or in parts.

Prints what went wrong, and counts; ends with 1 if anything did.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from datetime import datetime

from specdec_cli.errors import UsageError
from specdec_cli.generation.chat import ChatTemplate
from specdec_cli.generation.encode import text_ids
from specdec_cli.generation.template_process import START_SECONDS, TemplateProcess
from tests.generation.test_encode import FAMILIES, TEXTS, Family

VALUES = (
    "'a' * 10 ** 10", "10 ** 10 ** 8", "range(10 ** 9)", "range(99999) | list * 999", "'%999999999d' % 1",
    "'a' | center(10 ** 9)", "'ab' | indent(10 ** 8)", "messages", "messages[0]", "lipsum(n=99999)", "{}.x.y",
    "'{:>999999999}'.format(1)", "1 / 0", "-1 ** 0.5", "'\\ud800'", "'\\x00\\x1b[2J'", "undefined_name", "bos_token",
    "namespace(a=1)", "dict(a=messages)", "raise_exception('no. ')", "strftime_now('%Y' * 10 ** 6)", "cycler(1, 2)",
    "joiner('x')", "messages | tojson(indent=10 ** 8)", "7 ** 77777", "[[]] * 10 ** 9", "(1, 2) * 5 * 10 ** 7",
)  # fmt: skip
FILTERS = (
    "| list", "| join", "| length", "| sum", "| sort", "| tojson", "| string", "| reverse | list", "| batch(10 ** 9)",
    "| map('upper') | join", "| replace('a', 'a' * 9999)", "| trim", "| upper", "| first", "| pprint", "| urlize", "",
    "| wordwrap(1)", "| unique | list", "| groupby('a')", "| random", "| slice(10 ** 8) | list", "| xmlattr", "| int",
)  # fmt: skip
FRAMES = (
    "{{{{ {0} }}}}",
    "{{% for a in {0} %}}{{% for b in {0} %}}{{{{ a }}}}{{% endfor %}}{{% endfor %}}",
    "{{% for a in range(99999) %}}{{% for b in range(99999) %}}{{{{ {0} }}}}{{% endfor %}}{{% endfor %}}",
    "{{% macro m(n) %}}{{{{ {0} }}}}{{{{ m(n + 1) }}}}{{% endmacro %}}{{{{ m(0) }}}}",
    "{{% macro m(n) %}}{{% if n %}}{{{{ m(n - 1) }}}}{{{{ m(n - 1) }}}}{{% endif %}}{{% endmacro %}}"
    "{{{{ m(40) }}}}{{{{ {0} }}}}",
    "{{% set n = namespace(s={0}) %}}{{% for _ in range(99) %}}{{% set n.s = n.s + n.s %}}{{% endfor %}}",
    "{{% set n = namespace(s='') %}}{{% for _ in range(99999) %}}{{% set n.s = n.s ~ ({0}) %}}{{% endfor %}}",
    "{{% if {0} %}}x{{% else %}}y{{% endif %}}",
    "{{% filter upper %}}{{{{ {0} }}}}{{% endfilter %}}",
    "{{% for a in [1, 2] recursive %}}{{{{ {0} }}}}{{{{ loop([1, 2]) }}}}{{% endfor %}}",
)
ESCAPES = (
    "''.__class__", "[].__class__.__base__.__subclasses__()", "cycler.__init__.__globals__", "self.__dict__",
    "messages.__class__.__mro__", "raise_exception.__globals__", "strftime_now.__code__", "'%s' % cycler.__init__",
    "'{0.__class__}'.format('')", "'{0[__class__]}'.format({})", "self._TemplateReference__context",
    "joiner.__init__.__builtins__",
    "lipsum.__globals__.os.environ", "namespace.__init__.__func__", "range.__self__", "dict.__subclasses__()",
    "messages[0].__class__.__init__.__globals__", "('a' | attr('__class__'))", "('a' | attr('_' ~ '_class_' ~ '_'))",
    "([''] | map(attribute='__class__') | list)", "(messages | map('attr', '__class__') | list)", "loop.__class__",
    "caller.__globals__", "varargs.__class__", "(range(3) | groupby('__class__') | list)", "'' | format(x='%(x)s') ",
    "messages[0].get.__self__", "messages.copy.__self__.__class__", "tools.__class__", "tools._undefined_name",
    "tools._fail_with_undefined_error.__globals__", "documents._undefined_exception.__subclasses__()",
)  # fmt: skip
INTERNALS = re.compile(r"<class|<module|<function|<built-in|<slot|<code|site-packages|environ\(|__import__|PATH")
EXAMPLE = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]


class Attack:
    """What happened, by kind, and what must not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.slowest = 0.0

    def render(self, process: TemplateProcess, source: str) -> str | None:
        """The text, None where the template was refused in words."""
        began = time.monotonic()
        try:
            template = ChatTemplate(
                source, bos_text="<s>", eos_text="</s>", now=datetime.now, options={}, process=process
            )
            text = template.render(EXAMPLE, add_generation_prompt=True).text
            self.counts["rendered"] += 1
        except UsageError as error:
            text = None
            self.counts[_kind(str(error))] += 1
            if not str(error).endswith(".") or str(error).endswith("..") or len(str(error)) > 500:
                self.wrong.append(f"{source!r}: {error}")
        except Exception as error:  # what this program looks for
            text = None
            self.wrong.append(f"{source!r}: {error!r}")
        self.slowest = max(self.slowest, time.monotonic() - began)
        return text

    def report(self, seconds: float) -> bool:
        for line in self.wrong:
            print(f"WRONG {self.name}: {line[:400]}")
        counts = ", ".join(f"{n} {kind}" for kind, n in self.counts.most_common())
        print(f"{self.name}: {sum(self.counts.values())} cases: {counts}; {len(self.wrong)} wrong; {seconds:.0f} s")
        return not self.wrong


def _kind(error: str) -> str:
    for word, kind in (("more than", "out of time or memory"), ("leaves out", "left the question out")):
        if word in error:
            return kind
    return "ended its process" if "ends the process" in error else "refused"


def exhausting(n: int, draw: random.Random, process: TemplateProcess, patience: float) -> Attack:
    attack = Attack("exhausting templates")
    for _ in range(n):
        value = f"({draw.choice(VALUES)}) {draw.choice(FILTERS)} {draw.choice(FILTERS)}"
        frame = draw.choice(FRAMES).format(value)
        source = frame + draw.choice(("", "{{ messages[-1].content }}", draw.choice(FRAMES).format(value)))
        attack.render(process, source)
        if attack.slowest > patience:
            attack.wrong.append(f"{source!r}: {attack.slowest:.1f} s")
            attack.slowest = 0.0
    return attack


def escaping(n: int, draw: random.Random, process: TemplateProcess) -> Attack:
    attack = Attack("escaping templates")
    for i in range(n):
        escape = ESCAPES[i % len(ESCAPES)]
        source = "{{ messages[-1].content }}" + draw.choice(FRAMES[:1] + FRAMES[7:9]).format(
            f"({escape}) {draw.choice(FILTERS)}"
        )
        text = attack.render(process, source)
        if text is not None and INTERNALS.search(text):
            attack.wrong.append(f"{source!r}: {text[:200]!r}")
    return attack


def injecting(n: int, draw: random.Random) -> Attack:
    attack = Attack("contents")
    families = [Family(name) for name in FAMILIES]
    markers = [[family.attack, *_markers(family)] for family in families]
    for i in range(n):
        family = families[i % len(families)]
        names = draw.sample(markers[i % len(families)], min(8, len(markers[i % len(families)])))
        parts = [draw.choice((_marker, _piece, _ordinary))(draw, names) for _ in range(draw.randint(1, 8))]
        content = "x" + "".join(parts) + "x"  # templates trim
        ids, harmless = family.talk().ask(content), family.talk().ask("harmless")
        if family.markers(ids) != family.markers(harmless):
            attack.wrong.append(f"{family.name}: {content!r} was obeyed")
        if content not in family.spelt(ids):
            attack.wrong.append(f"{family.name}: {content!r} became {family.spelt(ids)!r}")
        whole = family.rendered("x" + "".join(_ordinary(draw, names) for _ in parts))
        if family.encoder.whole(whole + "\ufdd0\ufdd1") != text_ids(family.model, whole):
            attack.wrong.append(f"{family.name}: {whole!r} has other ids in parts")
        attack.counts["kept as text"] += 1
    return attack


def _markers(family: Family) -> list[str]:
    own_text = family.template.own_text
    return [t.text for t in family.model.special_tokens() if t.is_control or t.text in own_text]


def _marker(draw: random.Random, names: list[str]) -> str:
    return draw.choice(names)


def _piece(draw: random.Random, names: list[str]) -> str:
    name = draw.choice(names)
    return name[draw.randrange(len(name)) :][: draw.randint(1, len(name))]


def _ordinary(draw: random.Random, _names: list[str]) -> str:
    return draw.choice([text for text in TEXTS if "\ufdd0" not in text])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    process = TemplateProcess(seconds=options.seconds)
    good = True
    for run in (
        lambda: exhausting(options.n, draw, process, 3 * options.seconds + START_SECONDS),
        lambda: escaping(options.n, draw, process),
        lambda: injecting(options.n, draw),
    ):
        began = time.monotonic()
        attack = run()
        good = attack.report(time.monotonic() - began) and good
    process.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
