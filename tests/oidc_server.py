"""`python -m tests.oidc_server PORT`: an OpenID provider that requires PKCE.

oidc-provider-mock does the rest. `PUT /odd` with a word of `tests.oidc_oddities` makes
it misbehave.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import warnings

import flask
from werkzeug.serving import run_simple

from tests.oidc_oddities import ODD

with warnings.catch_warnings():
    # It imports a part of authlib that is deprecated.
    warnings.simplefilter("ignore")
    from oidc_provider_mock import app as provider


def main(port: int) -> None:
    app: flask.Flask = provider()
    challenges: set[str] = set()
    odd: list[str] = []

    @app.put("/odd")
    def misbehave() -> str:
        odd[:] = [flask.request.get_data(as_text=True)]
        return ""

    @app.before_request
    def insist_on_pkce() -> tuple[str, int] | None:
        request = flask.request
        if request.path == "/oauth2/authorize":
            is_hashed = request.args.get("code_challenge_method") == "S256"
            challenges.add(request.args.get("code_challenge", ""))
            return None if is_hashed else ("code_challenge_method", 400)
        if request.path == "/oauth2/token":
            verifier = request.form.get("code_verifier", "").encode()
            digest = hashlib.sha256(verifier).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            return None if challenge in challenges else ("code_verifier", 400)
        return None

    @app.after_request
    def be_odd(answer: flask.Response) -> flask.Response:
        path, change = ODD.get(odd[0] if odd else "", ("-", lambda said: said))
        if flask.request.path.endswith(path) and answer.is_json:
            answer.set_data(json.dumps(change(answer.get_json())))
        return answer

    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
