"""Episodes as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from stacx_core.swe.evaluation.trajectory import Part, Trajectory

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --student: #2a7de1; --teacher: #b05cd6; --environment: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); } .n { text-align: right; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; margin: .3rem 0; }
.part { border-left: 4px solid var(--environment); padding: .1rem .8rem; margin: .7rem 0; }
.student { border-color: var(--student); } .teacher { border-color: var(--teacher); }
.who { font-size: .8rem; color: var(--environment); } summary { cursor: pointer; }
.badge { border-radius: .4rem; padding: .05rem .5rem; border: 1px solid var(--line); }
.solved { background: #2b94; } .error { background: #d534; }
.branch { margin-top: 3rem; } .trained { outline: 1px dotted var(--line); outline-offset: .1rem; }
"""
_FOLDED = 6
"""Lines of what the environment said that are shown without unfolding."""


def trajectories_page(title: str, trajectories: Sequence[tuple[int, Trajectory]]) -> str:
    """A page with a table of the episodes, if there are several, and every one of them.

    Args:
        title: Of the page.
        trajectories: Each with its number in the file.
    """
    body = [f"<h1>{escape(title)}</h1>"]
    if len(trajectories) > 1:
        body.append(_contents(trajectories))
    body += [_episode(number, trajectory) for number, trajectory in trajectories]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _contents(trajectories: Iterable[tuple[int, Trajectory]]) -> str:
    rows = [
        f'<tr><td><a href="#e{number}">{escape(t.task)} #{t.sample}</a></td><td>{_badge(t)}</td>'
        f'<td class="n">{t.reward:g}</td><td class="n">{len(t.actions)}</td></tr>'
        for number, t in trajectories
    ]
    header = '<tr><th>episode</th><th>verdict</th><th class="n">reward</th><th class="n">turns</th></tr>'
    return f"<table>{header}{''.join(rows)}</table>"


def _episode(number: int, trajectory: Trajectory) -> str:
    t = trajectory
    counts = "".join(f", {escape(name)} {count}" for name, count in t.counts.items())
    parts = [
        f'<h2 id="e{number}">{escape(t.task)} #{t.sample}</h2>',
        f"<p>{_badge(t)} reward {t.reward:g}, {len(t.actions)} turns, outcome {escape(t.outcome)}{counts}</p>",
        f"<pre>{escape(t.error)}</pre>" if t.error else "",
        *(_part(part, place >= t.opening) for place, part in enumerate(t.parts)),
    ]
    if t.last_words:
        parts.append(_framed("environment", "the end, not shown to the agent", _folded(t.last_words, False)))
    return "\n".join(filter(None, parts))


def _part(part: Part, acted: bool) -> str:
    kind = f"{part.who}{' trained' * bool(part.mask)}{' branch' * part.branch}"
    text = _folded(part.text, True) if acted and part.who == "environment" else f"<pre>{escape(part.text)}</pre>"
    return _framed(kind, part_label(part), text)


def part_label(part: Part) -> str:
    """Who said a part, how long it is, whether it is trained on, and whether a branch begins with it."""
    begins = "a branch begins: " if part.branch else ""
    tokens = "" if part.tokens is None else f", {part.tokens} tokens"
    return f"{begins}{part.who}{tokens}, mask {part.mask}{', cut at the length limit' if part.cut else ''}"


def _framed(kind: str, label: str, inside: str) -> str:
    return f'<div class="part {kind}"><div class="who">{escape(label)}</div>{inside}</div>'


def _folded(text: str, closed: bool) -> str:
    lines = text.splitlines()
    if len(lines) <= _FOLDED:
        return f"<pre>{escape(text)}</pre>"
    telling = [line for line in lines if line.startswith("exit code")] or [line for line in lines if line.strip()]
    summary = escape(f"{telling[0] if telling else ''} ({len(lines)} lines)")
    return f"<details{'' if closed else ' open'}><summary>{summary}</summary><pre>{escape(text)}</pre></details>"


def _badge(trajectory: Trajectory) -> str:
    kind = "solved" if trajectory.solved else "error" if trajectory.failed else ""
    return f'<span class="badge {kind}">{escape(trajectory.verdict)}</span>'
