"""Numbers and reasons as people read them. A number that does not exist is a dash."""

from collections.abc import Sequence

from specdec_cli.decode.stats import Gain
from specdec_cli.decode.types import FinishReason

REASONS: dict[FinishReason, str] = {
    "stop": "end of answer",
    "length": "token limit reached",
    "context": "context full",
    "interrupt": "interrupted",
    "error": "failed",
}

UNKNOWN = "-"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f}%"


def decimal(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """Milliseconds, until they stop being readable."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{milliseconds(seconds)} ms"


def milliseconds(seconds: float) -> str:
    """The number alone; a clock's rounding must not show as a negative time."""
    value = max(0.0, 1000 * seconds)
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def size(n_bytes: int) -> str:
    if n_bytes >= 1 << 30:
        return f"{n_bytes / (1 << 30):.2f} GiB"
    return f"{n_bytes / (1 << 20):.0f} MiB"


def download(n_bytes: int) -> str:
    """Sizes of files as the Hub and most shops give them, in powers of ten."""
    if n_bytes >= 10**12:
        return f"{n_bytes / 10**12:.2f} TB"
    if n_bytes >= 10**9:
        return f"{n_bytes / 10**9:.2f} GB"
    if n_bytes >= 10**6:
        return f"{n_bytes / 10**6:.1f} MB"
    return f"{n_bytes / 10**3:.1f} kB"


def count(n: int, noun: str, plural: str | None = None) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {plural or noun + 's'}"


def off(reason: str) -> str:
    return f"speculation OFF ({reason})"


def speed(tokens_per_second: float | None) -> str:
    return f"{decimal(tokens_per_second, 1 if (tokens_per_second or 0) < 99.95 else 0)} tok/s"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.95 else f"{milliseconds(value)} ms"


def gain(estimate: Gain) -> str:
    """Against plain decoding, in two digits; ~ marks an estimate."""
    slower = ": slower" if estimate.speedup < 0.995 else ""
    return f"~{_two_digits(estimate.speedup)}x plain{slower}"


def spread(estimate: Gain, *, utf8: bool) -> str:
    return f"{'±' if utf8 else '+-'}{percent(estimate.plain.spread)}"


def times(drafted: float, plain: float) -> str:
    return f"{seconds(drafted)} instead of {seconds(plain)}"


def _two_digits(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.095 else f"{ratio:.2f}"


def listed(parts: Sequence[str], *, utf8: bool) -> str:
    """Figures in one line."""
    return (" · " if utf8 else ", ").join(parts)
