"""The part of YAML that a preset needs, read within bounds: the one door to yaml.

Aliases, anchors and tags are refused, since a few lines of them fill any memory or name Python types; so are keys
given twice, of which YAML silently takes the last. https://yaml.org/spec/1.1/
"""

from pathlib import Path
from typing import Any

import yaml

from specdec_cli.errors import UsageError
from specdec_cli.untrusted import one_line
from specdec_cli.untrusted_files import DEEPEST, check_bounds, read_file, reason

MOST_BYTES = 64 * 1024
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(file: Path) -> Any:
    """The one document in a file, as plain values; None for an empty one. Raises UsageError in one sentence."""
    try:
        text = read_file(file, MOST_BYTES).decode("utf-8-sig")
        _check_events(text)
        value = yaml.load(text, _Loader)
        check_bounds(value)
    except UnicodeDecodeError as error:
        raise _unreadable(file, "it is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise _unreadable(file, f"{one_line(error.problem or error.context)}{line}") from error
    except yaml.reader.ReaderError as error:
        raise _unreadable(file, f"it contains the control character {error.character!r}") from error
    except (OSError, ValueError) as error:
        raise _unreadable(file, reason(error)) from error
    return value


def write_yaml(data: Any) -> str:
    """Plain values as YAML, keys in their order."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def _unreadable(file: Path, why: str) -> UsageError:
    return UsageError(f"Cannot read the preset {file}: {why}.", hint="Fix it, or remove it.")


def _check_events(text: str) -> None:
    """Before anything is built. Raises MarkedYAMLError."""
    depth = n_documents = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        n_documents += isinstance(event, yaml.DocumentStartEvent)
        if n_documents > 1:
            raise _refused("it contains more than one document", event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("aliases and anchors are not allowed", event)
        if getattr(event, "tag", None) is not None:
            raise _refused("tags are not allowed", event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _refused(f"it is nested deeper than {DEEPEST} levels", event)


def _refused(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """`at` is an event or a node: what begins there is refused."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


class _Loader(yaml.SafeLoader):
    """Keys are text, each given once; a value that looks like a date but is none is an error in words."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                raise _refused("a key is not plain text", key)
            if key.value in seen:
                raise _refused(f"the key {one_line(key.value)!r} is duplicated", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # a 13th month, thousands of digits, or 1:1:1... in base 60
            raise _refused(f"{one_line(str(node.value))[:60]!r} is not a value", node) from error
