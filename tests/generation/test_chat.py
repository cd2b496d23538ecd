"""Chat templates of the kinds that people's files carry, and conversations that only ever grow."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.errors import UsageError
from specdec_cli.generation import template_worker
from specdec_cli.generation.chat import ChatTemplate, Conversation, Message

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA_3 = """\
{{- bos_token }}
{%- if not tools is none and strict_tools %}{{- tools | length }}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA_2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)

QWEN_3 = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

FOR_TRAINERS = """\
{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
{{ '[' + message.role + '] ' + message.content }}
    {% endif %}
{% endfor %}
"""

NOW = datetime(2024, 7, 26, 12, 0, tzinfo=UTC)
USER = {"role": "user", "content": "Hi <b> & é"}
SYSTEM = {"role": "system", "content": "Be short."}
ANSWER = {"role": "assistant", "content": "Hello!"}


def template(source: str, *, bos: str = "<s>", eos: str = "</s>", **options: object) -> ChatTemplate:
    return ChatTemplate(source, bos_text=bos, eos_text=eos, now=lambda: NOW, options=options)


def rendered(source: str, *messages: Message, bos: str = "<s>", add: bool = True, **options: object) -> str:
    return template(source, bos=bos, **options).render(messages, add_generation_prompt=add).text


def written(source: str, *messages: Message, **variables: object) -> str:
    """What the worker answers: nobody looks whether the messages are in it."""
    request = {"source": source, "now": NOW.isoformat(), "variables": variables, "messages": messages}
    return str(template_worker.answer({**request, "add_generation_prompt": True})["text"])


# --- rendering ------------------------------------------------------------------------------------------


def test_chatml() -> None:
    assert rendered(CHATML, SYSTEM, USER) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(CHATML, USER, ANSWER, add=False).endswith("<|im_start|>assistant\nHello!<|im_end|>\n")


def test_llama_3_gets_its_bos_and_the_date() -> None:
    assert rendered(LLAMA_3, SYSTEM, USER, bos="<|begin_of_text|>") == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe "
        "short.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b> & é<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_template_that_refuses_a_system_message_gets_it_with_the_first_question() -> None:
    assert rendered(GEMMA_2, SYSTEM, USER, ANSWER, USER) == (
        "<s><start_of_turn>user\nBe short.\n\nHi <b> & é<end_of_turn>\n"
        "<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nHi <b> & é<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


def test_thinking_is_the_templates_own_option() -> None:
    assert rendered(QWEN_3, USER).endswith("<|im_start|>assistant\n")
    assert rendered(QWEN_3, USER, enable_thinking=True).endswith("<|im_start|>assistant\n")
    assert rendered(QWEN_3, USER, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_marks_for_trainers_leave_the_text_alone_and_its_white_space_too() -> None:
    """As if the marks were blocks: a line that holds only a mark does not become an empty line."""
    assert rendered(FOR_TRAINERS, USER, ANSWER) == "[user] Hi <b> & é\nHello!</s>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a {% generation %} b {% endgeneration %} c", "a  b  c"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("a\n  {% generation %}\nb\n  {% endgeneration %}\nc", "a\nb\nc"),
        ("a\n  {%+ generation %}\nb\n  {%endgeneration%}\nc", "a\n  b\nc"),
    ],
)
def test_marks_keep_their_say_on_white_space(source: str, expected: str) -> None:
    assert rendered(source) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("messages[0] | tojson", '{"role": "user", "content": "Hi <b> & é"}'),
        ("[1, 2] | tojson", "[1, 2]"),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("{'a': 1} | tojson(indent=2)", '{\n  "a": 1\n}'),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
    ],
)
def test_json_is_for_models_and_not_for_web_pages(expression: str, expected: str) -> None:
    """jinja2's own filter would write < as \\u003c, which no model saw in training."""
    assert written("{{ " + expression + " }}", USER) == expected


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_transformers_always_passes_is_there(name: str) -> None:
    """Templates are written against it: `is not none` is true of a name that does not exist."""
    assert rendered("{% if " + name + " is not none %}{{ " + name + " | length }}{% else %}none{% endif %}") == "none"


def test_loops_can_be_left_and_data_cannot_break_out() -> None:
    assert rendered("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", USER, ANSWER) == USER["content"]
    message = {"role": "user", "content": "{{ 7 * 7 }}{% raise_exception('x') %}"}
    assert rendered("{{ messages[0].content }}", message) == message["content"]


# --- contents as parts, and templates that leave something out -------------------------------------------

PARTS = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}</{{ message.role }}>{% endfor %}"
)
EITHER = (
    "{% for message in messages %}<{{ message.role }}>{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}({{ part.text }}){% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PARTS, "<system>Be short.</system><user>Hi <b> & é</user>"),
        (EITHER, "<system>Be short.<user>Hi <b> & é"),
        ("{{ messages[-1].content[0].text }}", "Hi <b> & é"),
        ("{{ messages[-1]['content'][0]['text'] + '' }}", "Hi <b> & é"),
    ],
)
def test_contents_are_given_as_parts_where_they_would_be_lost_as_text(source: str, expected: str) -> None:
    assert rendered(source, SYSTEM, USER) == expected


@pytest.mark.parametrize("source", ["", "Hello!", "{{ messages[0].role }}", "{% for m in chat %}{{ m }}{% endfor %}"])
@pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER], [USER, ANSWER, USER]])
def test_a_template_that_leaves_out_the_question_is_refused(source: str, messages: list[Message]) -> None:
    with pytest.raises(UsageError, match="drops the user's message") as caught:
        rendered(source, *messages)
    assert "--raw" in str(caught.value.hint)


def test_a_system_message_that_is_left_out_is_told_once() -> None:
    notes: list[str] = []
    source = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }} {% endfor %}"
    talk, words = conversation(source, system="Be short.", notes=notes)
    assert words.decode(talk.ask("one")) == "<s>user:one "
    talk.answered(words.encode("1"), "1")
    talk.ask("two")
    assert notes == ["The model's chat template has no system role: the system message is dropped."]


def test_earlier_turns_that_are_left_out_are_told() -> None:
    notes: list[str] = []
    talk, words = conversation("{{ messages[-1].content }}", notes=notes)
    talk.ask("one")
    assert notes == []
    talk.answered(words.encode("1"), "1")
    assert words.decode(talk.ask("two")) == "<s>two"
    assert notes == ["The model's chat template drops earlier turns: the model does not see them."]


def test_templates_that_keep_everything_are_not_complained_of() -> None:
    for source in (CHATML, LLAMA_3, GEMMA_2, QWEN_3, FOR_TRAINERS, PARTS, "{{ messages[0].content | upper }}"):
        given = [USER] if "upper" in source else [SYSTEM, USER, ANSWER, USER]
        assert template(source).render(given, add_generation_prompt=True).lost == frozenset()


@pytest.mark.parametrize("name", ["tools", "documents"])
@pytest.mark.parametrize(
    "question",
    ["NAME is defined", "NAME is not none", "NAME", "NAME is defined and NAME is not none", "not NAME is none",
     "NAME != none", "NAME is not undefined", "NAME | length > 0", "NAME is iterable and NAME | length > 0",
     "NAME is not none and NAME | length"],
)  # fmt: skip
def test_every_way_to_ask_for_tools_hears_that_there_are_none(question: str, name: str) -> None:
    asked = question.replace("NAME", name)
    assert written("{% if " + asked + " %}{{ " + name + "[0].function }}{% else %}none{% endif %}") == "none"
    assert written("{% for t in " + name + " %}{{ t.x.y }}{% endfor %}{{ " + name + " | tojson }}") == "null"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (QWEN_3, True),
        ("{% if thinking %}<think>{% endif %}", True),
        ("{% set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}", True),
        (CHATML, False),
        ("{# enable_thinking #}{% set thinking = 1 %}{{ thinking }}", False),
    ],
)
def test_whether_thinking_can_be_switched(source: str, expected: bool) -> None:
    assert template(source).can_switch_thinking is expected


# --- templates that cannot be used ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 'abc }}",
        "{% unheard_of %}",
        "{{ messages | no_such_filter }}",
        "{% if true %}",
    ],
)
def test_a_broken_template_is_an_error_in_words_at_once(source: str) -> None:
    with pytest.raises(UsageError, match="chat template") as caught:
        template(source)
    assert "--raw" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Only pirates!') }}", "Only pirates!"),
        ("{{ raise_exception('One system message at most.') }}", "One system message at most"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages | length // 0 }}", "zero"),
        ("{{ range(10 ** 9) | length }}", "Range too big"),
        ("{{ missing | tojson }}", "Undefined"),
        ("{{ raise_exception() }}", "argument"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_template_that_fails_is_an_error_in_words(source: str, reason: str) -> None:
    """It is a stranger's program: any exception may come out of it."""
    for messages in ([USER], [SYSTEM, USER]):
        with pytest.raises(UsageError, match=re.escape(reason)) as caught:
            rendered(source, *messages)
        assert "chat template" in str(caught.value)
        assert ".." not in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ raise_exception.__code__.co_consts }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].pop('role') }}",
        "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
        "{{ self.__init__.__globals__.__builtins__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_templates_from_the_internet_reach_nothing(attack: str) -> None:
    with pytest.raises(UsageError):
        rendered(attack, dict(USER))


# --- conversations --------------------------------------------------------------------------------------

_MARKER = re.compile(r"<\|?[a-z_/]+\|?>|\n|.", re.DOTALL)


class Words:
    """A tokenizer: markers are one token each, other characters too. Id = place in the list of all that were seen."""

    def __init__(self, bos: str = "<s>") -> None:
        self.bos = bos
        self.seen: list[str] = []

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in _MARKER.findall(text)]

    def mark(self, content: str, *, is_reply: bool) -> str:
        assert isinstance(is_reply, bool)
        return content

    def whole(self, marked: str) -> list[int]:
        return self.encode(marked if marked.startswith(self.bos) else self.bos + marked)

    def rest(self, marked: str) -> list[int]:
        return self.encode(marked)

    def decode(self, ids: list[int]) -> str:
        return "".join(self.seen[i] for i in ids)

    def _id(self, piece: str) -> int:
        if piece not in self.seen:
            self.seen.append(piece)
        return self.seen.index(piece)


def conversation(
    source: str,
    *,
    system: str | None = None,
    bos: str = "<s>",
    options: Mapping[str, Any] | None = None,
    notes: list[str] | None = None,
) -> tuple[Conversation, Words]:
    words, told = Words(bos), [] if notes is None else notes
    made = Conversation(template(source, bos=bos, **(options or {})), words, system=system, say=told.append)
    return made, words


@pytest.mark.parametrize(
    ("source", "bos"),
    [(CHATML, "<s>"), (LLAMA_3, "<|begin_of_text|>"), (GEMMA_2, "<bos>"), (QWEN_3, "<s>")],
    ids=["chatml", "llama 3", "gemma 2", "qwen 3"],
)
@pytest.mark.parametrize("system", [None, "Be short."])
def test_a_turn_only_adds_to_the_one_before(source: str, bos: str, system: str | None) -> None:
    """Ids that stay a prefix are not evaluated again; the answer's are kept as they were generated."""
    talk, words = conversation(source, system=system, bos=bos)
    before: list[int] = []
    expected: list[Message] = [{"role": "system", "content": system}] if system else []
    for question, answer in (("one", "1"), ("two", "2"), ("three", "3")):
        expected.append({"role": "user", "content": question})
        ids = talk.ask(question)

        assert ids[: len(before)] == before
        whole = template(source, bos=bos).render(expected, add_generation_prompt=True).text
        assert words.decode(ids) == (whole if whole.startswith(bos) else bos + whole)
        assert words.decode(ids).count(bos) == 1, "BOS is neither doubled nor repeated by a later turn"

        generated = words.encode(answer)
        talk.answered(generated, answer)
        before = [*ids, *generated]
        expected.append({"role": "assistant", "content": answer})


def test_ids_of_an_answer_are_kept_even_if_its_text_would_be_encoded_otherwise() -> None:
    talk, words = conversation(CHATML)
    first = talk.ask("one")
    odd = [words.encode("x")[0] + 1000, 2000]
    talk.answered(odd, "xy")

    assert talk.ask("two")[: len(first) + 2] == [*first, *odd]


def test_a_template_that_drops_earlier_thoughts_is_encoded_anew() -> None:
    talk, words = conversation(QWEN_3)
    first = talk.ask("one")
    answer = "<think>\nhm\n</think>\n\n1"
    talk.answered(words.encode(answer), answer)
    second = talk.ask("two")

    assert words.decode(second) == (
        "<s><|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second[: len(first)] == first, "what is left of the prefix can be used again"


def test_a_template_that_trims_the_answer_is_encoded_anew() -> None:
    talk, words = conversation(GEMMA_2)
    talk.ask("one")
    talk.answered(words.encode(" 1 \n"), " 1 \n")

    assert "<start_of_turn>model\n1<end_of_turn>\n" in words.decode(talk.ask("two"))


def test_an_answer_whose_ids_do_not_spell_its_text_is_encoded_anew() -> None:
    """A stop string is cut out of the text, not out of the ids."""
    talk, words = conversation(CHATML)
    talk.ask("one")
    talk.answered(None, "1")

    decoded = words.decode(talk.ask("two"))
    assert decoded.startswith("<s><|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n")
    assert decoded.count("<s>") == 1


def test_an_answer_broken_off_before_its_first_token_is_a_turn_too() -> None:
    talk, words = conversation(GEMMA_2, bos="<bos>")
    first = talk.ask("one")
    talk.answered([], "")

    second = talk.ask("two")
    assert second[: len(first)] == first
    assert words.decode(second[len(first) :]).startswith("<end_of_turn>\n<start_of_turn>user\ntwo")


def test_forgetting_keeps_the_system_message_only() -> None:
    talk, words = conversation(CHATML, system="Be short.")
    fresh = talk.ask("one")
    talk.answered(words.encode("1"), "1")
    talk.ask("two")
    talk.forget()

    assert talk.ask("one") == fresh


def test_going_back_gives_the_same_ids_as_if_nothing_had_been_said() -> None:
    talk, words = conversation(CHATML, system="Be short.")
    talk.ask("one")
    talk.answered([*words.encode("1"), 2000], "1")  # ids that its text would not be encoded to
    point, second = talk.point, talk.ask("two")
    talk.answered(words.encode("2"), "2")
    talk.ask("three")
    talk.return_to(point)

    assert talk.ask("two") == second


def test_another_system_message_stands_in_the_next_prompt_and_a_way_back_leaves_it() -> None:
    talk, words = conversation(CHATML, system="Be short.")
    talk.ask("one")
    talk.answered(words.encode("1"), "1")
    point = talk.point
    talk.set_system("Be long.")

    decoded = words.decode(talk.ask("two"))
    assert "Be long." in decoded
    assert "Be short." not in decoded
    assert "one" in decoded
    talk.return_to(point)
    assert talk.system == "Be long."
    assert words.decode(talk.ask("two")) == decoded
    talk.set_system(None)
    assert "system" not in words.decode(talk.ask("two"))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8), st.booleans()), min_size=1, max_size=4))
def test_any_chat_says_what_its_template_says(turns: list[tuple[str, str, bool]]) -> None:
    """Extended or encoded anew, the ids spell the rendered conversation."""
    talk, words = conversation(QWEN_3)
    expected: list[Message] = []
    for question, answer, is_spelled in turns:
        expected.append({"role": "user", "content": question})
        whole = template(QWEN_3).render(expected, add_generation_prompt=True).text
        assert words.decode(talk.ask(question)) == "<s>" + whole
        talk.answered(words.encode(answer) if is_spelled else None, answer)
        expected.append({"role": "assistant", "content": answer})
