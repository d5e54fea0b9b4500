"""Headers with a secret's name are masked, in any spelling of the name."""

from __future__ import annotations

import pytest

from apps.dashboard.selectors.messages import is_secret


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "x-auth", "Set-Cookie", "csrfToken", "client_secret"),
        *("password", "X-Api-Key", "api_key", "ApiKey", "APIKEY"),
        *("access_key", "AccessKeyId", "private-key", "PRIVATE_KEY", "account.key"),
        *("jwt", "x-jwt", "userJWT", "bearer", "X-Bearer", "pwd", "db_pwd", "userPwd"),
        *("sas", "blob-sas", "blobSas", "SAS", "signature", "x-hub-signature-256"),
        *("x-session-id", "sessionId", "SESSION_ID", "connection-string", "sig"),
        *("ConnectionString", "x-otp", "sharedKey"),
    ],
)
def test_the_name_of_a_secret_is_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("message-id", "content-type", "x-tenant", "key", "partition-key", "pwdless"),
        *("sassafras", "design", "x-pinned", "session-type", "trace-parent"),
    ],
)
def test_a_name_that_only_resembles_one_is_not_secret(name: str) -> None:
    assert not is_secret(name)
