"""Under which conditions control comes past a statement, and on to the next one.

Guards that are None are those of a statement that nothing comes past. What raises is not asked
about: where it does there is nothing to be read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from backend_caps.engines.source.truth import Guards, all_of, any_of, decided, met, negated, words

_SWALLOWS = frozenset({"suppress", "ignoring"})
"""Context managers that what they are around may be cut short in, by name."""
_MOST_CASES = 60
"""As many cases of a `match` are told apart."""
_Loop = ast.For | ast.AsyncFor | ast.While


def passed(statement: ast.stmt) -> Guards | None:
    """Say what must have held for control to come past a statement; None if it never does."""
    match statement:
        case ast.Return() | ast.Continue() | ast.Break():
            return None
        case ast.If(test=test, body=then, orelse=orelse):
            return () if is_type_checking(test) else _passed_if(test, then, orelse)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _past_handlers(_passed_all(body), handlers_of(statement))
        case ast.For() | ast.AsyncFor() | ast.While():
            return _passed_loop(statement)
        case ast.Try() | ast.TryStar():
            return _passed_try(statement)
        case ast.Match():
            return _passed_match(statement)
    return ()


def is_type_checking(test: ast.expr) -> bool:
    """Tell whether a condition tells the type checker from the interpreter."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def _passed_all(body: Sequence[ast.stmt]) -> Guards | None:
    found: Guards = ()
    for statement in body:
        past = passed(statement)
        if past is None:
            return None
        found += past
    return met(found)


def _passed_if(
    test: ast.expr, then: Sequence[ast.stmt], orelse: Sequence[ast.stmt]
) -> Guards | None:
    taken, other = _passed_all(then), _passed_all(orelse)
    holds = decided(test)
    if holds is not None:
        return taken if holds else other
    if taken is None:
        return None if other is None else (negated(test), *other)
    if other is None:
        return test, *taken
    return *_unless(negated(test), taken), *_unless(test, other)


def _unless(test: ast.expr, guards: Guards) -> Guards:
    """Ask for guards where a condition does not hold."""
    return (any_of([test, all_of(guards)]),) if guards else ()


def loop_words(loop: _Loop) -> ast.expr:
    """Write that the body of a loop runs."""
    if isinstance(loop, ast.While):
        return loop.test
    return words(f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}")


def left(loop: _Loop) -> Guards:
    """Write that a loop was left by a `break`; nothing where it has none."""
    has_break = _has(loop.body, ast.Break)
    return (words(f"left the loop {_head(loop)}"),) if has_break else ()


def _head(loop: _Loop) -> str:
    return f"{'while ' * isinstance(loop, ast.While)}{ast.unparse(loop_words(loop))}"


def _passed_loop(loop: _Loop) -> Guards | None:
    returned = words(f"returned from the loop {_head(loop)}")
    found = (negated(returned),) if _has(loop.body, ast.Return) else ()
    breaks, after = left(loop), _passed_all(loop.orelse)
    if after is None:
        return (*found, *breaks) if breaks else None
    return *found, *(_unless(breaks[0], after) if breaks else after)


def _has(body: Sequence[ast.stmt], kind: type[ast.Return | ast.Break]) -> bool:
    """Tell whether a body leaves itself so, functions and what inner loops leave aside."""
    return any(
        isinstance(statement, kind) or any(_has(inner, kind) for inner in _bodies(statement, kind))
        for statement in body
    )


def _bodies(
    statement: ast.stmt, kind: type[ast.Return | ast.Break]
) -> Iterator[Sequence[ast.stmt]]:
    match statement:
        case ast.For() | ast.AsyncFor() | ast.While():
            yield from (
                [statement.orelse] if kind is ast.Break else [statement.body, statement.orelse]
            )
        case ast.If(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            yield body
        case ast.Try() | ast.TryStar():
            yield from (statement.body, statement.orelse, statement.finalbody)
            yield from (handler.body for handler in statement.handlers)
        case ast.Match(cases=cases):
            yield from (case.body for case in cases)


def handler_words(handler: ast.ExceptHandler) -> ast.expr:
    """Write that an exception was caught."""
    return words(f"except {ast.unparse(handler.type)}" if handler.type else "except")


def handlers_of(statement: ast.With | ast.AsyncWith) -> list[ast.ExceptHandler]:
    """Write what a `with` swallows as handlers that do nothing."""
    return [
        ast.ExceptHandler(type=_one_of(item.context_expr.args), body=[ast.Pass()])
        for item in statement.items
        if isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func).rpartition(".")[2] in _SWALLOWS
    ]


def _one_of(types: Sequence[ast.expr]) -> ast.expr | None:
    if len(types) > 1:
        return ast.Tuple(elts=list(types), ctx=ast.Load())
    return types[0] if types else None


def not_cut_short(handlers: Sequence[ast.ExceptHandler]) -> Guards:
    """Ask that nothing is caught; what raises again is not asked about."""
    return tuple(negated(handler_words(each)) for each in handlers if not _raises(each.body))


def _raises(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise) and not _has(body, ast.Return)


def _passed_try(statement: ast.Try | ast.TryStar) -> Guards | None:
    own, last = _passed_all([*statement.body, *statement.orelse]), _passed_all(statement.finalbody)
    past = _past_handlers(own, statement.handlers)
    return None if last is None or past is None else past + last


def _past_handlers(own: Guards | None, handlers: Sequence[ast.ExceptHandler]) -> Guards | None:
    """Say when control comes past a body, by its own ways or by its handlers'."""
    pasts = [(handler_words(each), _passed_all(each.body)) for each in handlers]
    caught = [all_of((test, *past)) for test, past in pasts if past is not None]
    if own is None:
        return (any_of(caught),) if caught else None
    found = (any_of([*caught, all_of(own)]),) if own and caught else own
    for test, past in pasts:
        found += (negated(test),) if past is None else _unless(negated(test), past)
    return found


def cases_of(statement: ast.Match) -> Iterator[tuple[ast.match_case, Guards]]:
    """List the cases of a `match`, each with what must hold for it to be taken."""
    if len(statement.cases) > _MOST_CASES:
        yield from ((case, (words("it is one of many cases"),)) for case in statement.cases)
        return
    before: list[tuple[ast.match_case, Guards]] = []
    for case in statement.cases:
        test = _pattern_test(statement.subject, case.pattern)
        own = (*((test,) if test else ()), *((case.guard,) if case.guard else ()))
        others = (negated(all_of(guards)) for other, guards in before if not _differ(other, case))
        yield case, (*others, *own)
        before.append((case, own))


def _differ(one: ast.match_case, other: ast.match_case) -> bool:
    """Tell whether two cases are of different constants."""
    match one.pattern, other.pattern:
        case ast.MatchValue(ast.Constant(value=value)), ast.MatchValue(ast.Constant(value=another)):
            return bool(value != another)
    return False


def _pattern_test(subject: ast.expr, pattern: ast.pattern) -> ast.expr | None:
    """Write what a pattern asks for; None where it takes everything."""
    match pattern:
        case ast.MatchAs(pattern=None):
            return None
        case ast.MatchValue(value=value):
            return ast.Compare(left=subject, ops=[ast.Eq()], comparators=[value])
        case ast.MatchSingleton(value=value):
            return ast.Compare(left=subject, ops=[ast.Is()], comparators=[ast.Constant(value)])
    return words(f"{ast.unparse(subject)} matches {ast.unparse(pattern)}")


def _passed_match(statement: ast.Match) -> Guards | None:
    found: Guards = ()
    cases = list(cases_of(statement))
    pasts = [_passed_all(case.body) for case, _ in cases]
    takes_all = any(
        _pattern_test(statement.subject, case.pattern) is None and not case.guard
        for case, _ in cases
    )
    if takes_all and all(past is None for past in pasts):
        return None
    for (_, guards), past in zip(cases, pasts, strict=True):
        test = negated(all_of(guards))
        found += (test,) if past is None else _unless(test, past)
    return met(found)
