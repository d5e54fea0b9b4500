"""The pages of positions: the list, one position, and its move with a review."""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms import position_move as forms
from apps.dashboard.forms.fields import reason_in
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import consumer_positions
from apps.team.rights import Scope
from apps.triage.services import position_moves
from apps.triage.services.position_moves import (
    PositionChanged,
    Review,
    StillHeld,
    Strategy,
)


@require_safe
@needs(Scope.POSITIONS_READ)
def index(request: SignedIn) -> HttpResponse:
    context = {
        "positions": consumer_positions.find(request.user.principal, now=clock.now()),
        "curl": api_calls_as_curl.get(request, "/api/v1/positions"),
    }
    return show(
        request,
        "consumer_positions/list.html",
        context,
        live="consumer_positions/_live_positions.html",
    )


@require_safe
@needs(Scope.POSITIONS_READ)
def detail(request: SignedIn, position_id: int) -> HttpResponse:
    principal = request.user.principal
    position_detail = consumer_positions.one(position_id, principal, now=clock.now())
    context = {
        "detail": position_detail,
        "position": position_detail.position,
        "may_move": principal.may(Scope.POSITIONS_WRITE),
        "just_moved": request.GET.get("moved", ""),
        "curl": api_calls_as_curl.get(
            request,
            "/api/v1/positions",
            topic=position_detail.position.topic.name,
            client_name=position_detail.position.client_name,
        ),
    }
    live = "consumer_positions/_live_detail.html"
    return show(request, "consumer_positions/detail.html", context, live=live)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.POSITIONS_WRITE)
def move(request: SignedIn, position_id: int) -> HttpResponse:
    """Show the choice, then the review, of a consumer position's move (both with GET).

    A POST moves the position as reviewed.
    """
    if request.method == "POST":
        return _confirm(request, position_id)
    choices = consumer_positions.choices(position_id, request.user.principal)
    if "strategy" not in request.GET:
        return _choose(request, position_id)
    try:
        wish = forms.parse_wish(request.GET, choices.marks)
        review = _review_of(request, position_id, wish)
    except Invalid as wrong:
        return _choose(request, position_id, wrong=wrong)
    return _review(request, review)


def _confirm(request: SignedIn, position_id: int) -> HttpResponse:
    """Move a consumer position as the signed review says.

    Where the review is stale or the move is refused, show that instead.
    """
    principal = request.user.principal
    token = request.POST.get("token", "")
    try:
        signed_review = forms.SignedReview(
            token, position_id=position_id, principal=principal
        )
    except PositionChanged:
        return _choose(request, position_id, stale=True)
    try:
        _, done = position_moves.move(
            position_id=position_id,
            wish=signed_review.wish,
            reason=reason_in(request.POST),
            fence="fence" in request.POST,
            principal=principal,
            now=clock.now(),
            agreed=signed_review.matches,
        )
    except (Invalid, PositionChanged, StillHeld) as refusal:
        return _review(
            request,
            _review_of(request, position_id, signed_review.wish),
            refusal=refusal,
        )
    place = reverse("position", args=[position_id])
    return redirect(f"{place}?{urlencode({'moved': done.pk})}")


def _review_of(
    request: SignedIn, position_id: int, wish: position_moves.MoveTarget
) -> Review:
    """Return the review of what moving a consumer position would do, without a move."""
    return position_moves.review(
        position_id=position_id,
        wish=wish,
        principal=request.user.principal,
        now=clock.now(),
    )


def _choose(
    request: SignedIn,
    position_id: int,
    *,
    wrong: Invalid | None = None,
    stale: bool = False,
) -> HttpResponse:
    """Render the page on which the target of a position's move is chosen."""
    choices = consumer_positions.choices(position_id, request.user.principal)
    context = {
        "choices": choices,
        "position": choices.position,
        "params": request.GET,
        "strategies": Strategy,
        "wrong": wrong,
        "stale": stale,
        "numbers": [
            (f"seq-{pk}", mark, request.GET.get(f"seq-{pk}", ""))
            for pk, mark in choices.marks.items()
        ],
    }
    status = HTTPStatus.OK
    if wrong is not None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    if stale:
        status = HTTPStatus.CONFLICT
    return render(request, "consumer_positions/move_form.html", context, status=status)


def _review(
    request: SignedIn,
    review: Review,
    *,
    refusal: Invalid | PositionChanged | StillHeld | None = None,
) -> HttpResponse:
    """Render the review of a position's move, with a signed token for it."""
    position = review.position
    ask = (
        {"move": review.fixed.move}
        if review.fixed.strategy is Strategy.RESTORE
        else {"to": dict(review.fixed.to)}
    )
    path = f"/api/v1/positions/{position.pk}/move"
    context = {
        "review": review,
        "position": position,
        "is_held": review.is_held(clock.now()),
        "token": forms.sign_review(review, request.user.principal),
        "reason": reason_in(request.POST),
        "wrong": refusal if isinstance(refusal, Invalid) else None,
        "changed": "" if isinstance(refusal, Invalid | None) else str(refusal),
        "curl": api_calls_as_curl.post(request, path, {**ask, "dry_run": True}),
    }
    statuses = {Invalid: 422, PositionChanged: 409, StillHeld: 409}
    status = 200 if refusal is None else statuses[type(refusal)]
    return render(
        request, "consumer_positions/move_confirmation.html", context, status=status
    )
