"""Earlier texts on disk: kept, found, bounded, and refused where they are not what they should be."""

import json
import os
import stat
import string
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.drafters.ngram import store as ngram_store
from specdec_cli.drafters.ngram.store import MOST_TOKENS, SHORTEST_MATCH, NgramStore, StoreFile, fingerprint
from specdec_cli.errors import UsageError
from tests.cli import HEADS, VOCAB, inside, json_inside, ring, specdec, word
from tests.planted import write_planted

TOKENIZER = "0123456789abcdef"


class Notes(list[str]):
    """What the user is told."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "project" / "ngrams"


def file(path: Path, notes: Notes, tokenizer: str = TOKENIZER) -> StoreFile:
    return StoreFile(path, tokenizer, notes)


def save(path: Path, notes: Notes, *texts: Sequence[int]) -> None:
    place = file(path, notes)
    store = place.load()
    for text in texts:
        store.keep(text)
    place.save(store)


def saved(path: Path) -> list[list[int]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def proposed(path: Path, notes: Notes, *tokens: int) -> list[int]:
    return [token for token, _, _ in file(path, notes).load().continuation(tokens)]


# --- matches ---------------------------------------------------------------------------------------------

TEXT = st.lists(st.integers(0, 2), max_size=12)


def search(texts: Sequence[Sequence[int]], tokens: Sequence[int]) -> tuple[list[int], int]:
    """What followed the longest match, of the longest ones the last, and its length; by looking everywhere."""
    best: tuple[list[int], int] = ([], 0)
    for text in texts:
        for place in range(len(text) + 1):
            n = 0
            while n < min(place, len(tokens)) and text[place - 1 - n] == tokens[-1 - n]:
                n += 1
            if n >= max(best[1], SHORTEST_MATCH):
                best = list(text[place:]), n
    return best


@given(st.lists(TEXT, max_size=3), TEXT)
def test_the_longest_and_last_match_is_found(texts: list[list[int]], tokens: list[int]) -> None:
    found = list(NgramStore(texts).continuation(tokens))
    expected, length = search(texts, tokens)

    assert [token for token, _, _ in found] == expected
    assert [n for _, n, _ in found] == [length + i for i in range(len(expected))]


def test_what_followed_several_times_the_same_agrees() -> None:
    def agreement(*texts: Sequence[int]) -> str:
        return next(NgramStore(texts).continuation([1, 2, 3]))[2]

    assert agreement([1, 2, 3, 4]) == "once"
    assert agreement([1, 2, 3, 4], [1, 2, 3, 4, 5]) == "agree"
    assert agreement([1, 2, 3, 4], [1, 2, 3, 5]) == "differ"


def test_large_ids_are_told_apart() -> None:
    largest = 2**21 - 2
    store = NgramStore([[largest, largest, largest - 1, 5], [largest, largest - 1, largest, 6]])

    assert [token for token, _, _ in store.continuation([largest, largest - 1, largest])] == [6]
    assert list(store.continuation([largest - 1, largest, largest - 1])) == []


# --- the file --------------------------------------------------------------------------------------------


def test_texts_come_back_in_order(path: Path, notes: Notes) -> None:
    assert list(file(path, notes).load().continuation([1, 2, 3])) == []
    save(path, notes, [1, 2, 3, 4])
    save(path, notes, [1, 2, 3, 5], [7, 8, 9])

    assert saved(path) == [[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9]]
    assert proposed(path, notes, 0, 1, 2, 3) == [5]
    assert notes == []


def test_a_chat_is_one_text(path: Path, notes: Notes) -> None:
    save(path, notes, [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5], [9, 9])

    assert saved(path) == [[1, 2, 3, 4, 5], [9, 9]]


def test_nothing_new_writes_nothing(path: Path, notes: Notes) -> None:
    save(path, notes)

    assert not path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes")
def test_only_its_owner_may_read_it(path: Path, notes: Notes) -> None:
    save(path, notes, [1, 2, 3])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_texts_go_first(path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_store, "MOST_TOKENS", 10)
    save(path, notes, [1] * 4, [2] * 4)
    save(path, notes, [3] * 4)
    assert saved(path) == [[2] * 4, [3] * 4]
    save(path, notes, [2] * 4)
    assert saved(path) == [[3] * 4, [2] * 4], "a text that comes again is new again"
    save(path, notes, list(range(15)))
    assert saved(path) == [list(range(5, 15))], "of one that is too long the end stays"


def test_a_full_store_opens_fast_and_is_small(path: Path, notes: Notes) -> None:
    save(path, notes, *([i % 40_000 for i in range(n, n + 4096)] for n in range(0, MOST_TOKENS, 4096)))

    assert sum(map(len, saved(path))) == MOST_TOKENS
    assert path.stat().st_size < 2 * 2**20
    assert proposed(path, notes, 39_997, 39_998, 39_999)[:3] == [0, 1, 2]


def test_the_store_of_another_tokenizer_is_refused(path: Path, notes: Notes) -> None:
    save(path, notes, [1, 2, 3])
    before = path.read_bytes()

    with pytest.raises(UsageError, match="a different tokenizer"):
        file(path, notes, "another").load()
    store = NgramStore()
    store.keep([5, 6, 7])
    file(path, notes, "another").save(store)
    assert path.read_bytes() == before


def test_a_folder_has_a_file_for_each_tokenizer(tmp_path: Path, notes: Notes) -> None:
    for tokenizer, text in (("aa", [1, 2, 3]), ("bb", [4, 5, 6])):
        place = StoreFile(tmp_path, tokenizer, notes)
        store = place.load()
        store.keep(text)
        place.save(store)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["specdec-ngrams-aa.jsonl", "specdec-ngrams-bb.jsonl"]


HEADER = '{"format": "specdec n-grams 1", "tokenizer": "0123456789abcdef", "crc32": 0}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"My notes. Do not lose them.\n",
        b"[1, 2, 3]\n",
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b'{"format": "specdec n-grams 2", "tokenizer": "0123456789abcdef", "crc32": 0}\n',
        HEADER.encode() + b"[1,2,3]\n",
        HEADER.replace("0}", "null}").encode() + b"",
    ],
)
def test_a_file_that_is_no_store_is_told_left_out_and_left_alone(path: Path, notes: Notes, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    save(path, notes, [1, 2, 3, 4])

    assert path.read_bytes() == content
    (note,) = notes
    assert str(path) in note
    assert note.startswith("Ignoring ")


@given(st.data())
def test_a_byte_that_changed_never_goes_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path, notes = tmp_path_factory.getbasetemp() / "damaged", Notes()
    path.unlink(missing_ok=True)
    save(path, notes, [1, 2, 3, 4, 5, 6, 7])
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content if data.draw(st.booleans()) else content[:at])

    try:
        found = file(path, notes).load()
    except UsageError:  # the fingerprint is what changed
        return
    assert notes or list(found.continuation([1, 2, 3])) == []


def test_a_line_that_is_no_text_is_damage(path: Path, notes: Notes) -> None:
    for line in ('{"a": 1}', "[1, -1]", "[1, 2.5]", "[true]", "[9999999999]", "[1"):
        path.parent.mkdir(exist_ok=True)
        rest = line.encode() + b"\n"
        header = {"format": "specdec n-grams 1", "tokenizer": TOKENIZER, "crc32": ngram_store.zlib.crc32(rest)}
        path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
        assert proposed(path, notes, 1, 2, 3) == []
    assert len(notes) == 6


def test_an_id_that_the_model_does_not_have_is_damage(path: Path, notes: Notes) -> None:
    save(path, notes, [1, 2, 3, 99])
    assert proposed(path, notes, 1, 2, 3) == [99]
    assert list(StoreFile(path, TOKENIZER, notes, n_vocab=99).load().continuation([1, 2, 3])) == []
    assert "is damaged" in notes[0]


def test_a_fifo_is_refused_and_not_waited_for(path: Path, notes: Notes) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not a regular file"):
        file(path, notes).load()


def test_a_line_ends_only_where_json_lines_end(path: Path, notes: Notes) -> None:
    r"""A \r in a line is white space of JSON; it is no second text."""
    path.parent.mkdir()
    rest = "[1,\r2,3,4]\n"
    header = {"format": "specdec n-grams 1", "tokenizer": TOKENIZER, "crc32": zlib.crc32(rest.encode())}
    path.write_text(f"{json.dumps(header)}\n{rest}", newline="")
    assert proposed(path, notes, 1, 2, 3) == [4]


def test_a_link_stays_a_link(path: Path, notes: Notes) -> None:
    path.parent.mkdir()
    path.symlink_to(path.with_name("elsewhere"))
    save(path, notes, [1, 2, 3])
    assert path.is_symlink()
    assert saved(path) == [[1, 2, 3]]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "file").write_text("")
    save(tmp_path / "file" / "ngrams", notes, [1, 2, 3])

    assert len(notes) == 1
    assert notes[0].startswith("Cannot save ")


WRITER = """
import sys
from pathlib import Path
from specdec_cli.drafters.ngram.store import StoreFile
place = StoreFile(Path(sys.argv[1]), "0123456789abcdef", print)
for i in range(25):
    store = place.load()
    store.keep([int(sys.argv[2])] * 300 + [i])
    place.save(store)
"""


def test_two_at_once_leave_a_whole_file(path: Path, notes: Notes) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in (1, 2)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            file(path, notes).load()
            seen += 1

    assert [(writer.wait(), writer.stdout.read() if writer.stdout else "") for writer in writers] == [(0, "")] * 2
    assert notes == []
    assert seen > 0
    texts = saved(path)
    assert {tuple(text[:300]) for text in texts} <= {(1,) * 300, (2,) * 300}
    assert len(texts) >= 25, "each keeps at least what it wrote itself"
    assert [p.name for p in path.parent.iterdir()] == ["ngrams"]


# --- tokenizers ------------------------------------------------------------------------------------------


class FakeTokenizer:
    def __init__(self, n_vocab: int = 9000, changed: int | None = None, probe: Sequence[int] = (1, 2)) -> None:
        self.n_vocab = n_vocab
        self.changed = changed
        self.probe = list(probe)

    def token_bytes(self, token: int) -> bytes:
        return b"other" if token == self.changed else str(token).encode()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert text
        assert not add_special
        assert not parse_special
        return self.probe


def test_a_fingerprint_tells_tokenizers_apart() -> None:
    same = fingerprint(FakeTokenizer())
    assert same == fingerprint(FakeTokenizer())
    others = (FakeTokenizer(n_vocab=9001), FakeTokenizer(changed=4), FakeTokenizer(probe=(1, 3)))
    assert len({same, *map(fingerprint, others)}) == 4


# --- the command -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says the alphabet."""
    letters = [word(letter) for letter in string.ascii_lowercase]
    path = tmp_path_factory.mktemp("models") / "alphabet.gguf"
    return write_planted(path, ring(*letters), vocab=VOCAB, n_head=HEADS)


def test_the_second_run_copies_from_the_first(alphabet: Path, tmp_path: Path) -> None:
    flags = ("a b c", "--temp", 0, "-n", 20, "-k", 4, "--raw", "--draft", "ngram", "--ngram-store", tmp_path)
    first, second = json_inside(alphabet, *flags), json_inside(alphabet, *flags)
    plain = json_inside(alphabet, *flags[:8])

    assert first.document["token_ids"] == second.document["token_ids"] == plain.document["token_ids"]
    assert "store" not in first.stats["sources"]
    assert second.stats["sources"]["store"]["accepted"] > 10
    assert second.stats["passes"] < first.stats["passes"]
    (kept,) = tmp_path.iterdir()
    assert os.path.getsize(kept) < 1000


def test_without_the_option_nothing_is_kept(alphabet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    json_inside(alphabet, "a b c", "-n", 5, "--raw", "--draft", "ngram")

    assert list(tmp_path.iterdir()) == []


def test_a_store_without_ngrams_is_refused(alphabet: Path, tmp_path: Path) -> None:
    done = inside("run", alphabet, "a", "--ngram-store", tmp_path)

    assert done.code == 2
    assert "--draft ngram" in done.err


def test_help_says_what_is_written() -> None:
    text = " ".join(specdec("run", "--help").out.replace("│", " ").split())

    assert "Prompts and answers are stored" in text
    assert "Without this option nothing is stored" in text
