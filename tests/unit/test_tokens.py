"""Tokens: one good one is let in, and everything that is known to be tried is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import ValidationError

from dats_common.adapters.jwt_tokens import MAX_TOKEN_CHARS, JwtVerifier, build_jwt_verifier
from dats_common.domain.access import Caller
from dats_common.errors import ConfigurationError, Unauthenticated
from dats_common.settings.sections import Jwt

ISSUER, AUDIENCE = "https://idp.example", "dats-rag"
OURS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
THEIRS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECRET = "a shared secret that is long enough, also for " + "SHA-512 " * 4
CANARY = "hunter2canary"


def public_pem(key: Any) -> Any:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


PEM = public_pem(OURS)


def claims(**changes: Any) -> dict[str, Any]:
    """Of a good token; a change to None leaves the claim out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": now,
        "exp": now + 60,
        "tenant_id": "acme",
        "roles": ["reader"],
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def signed(key: Any = OURS, algorithm: str = "RS256", headers: Mapping[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers=dict(headers or {}))


def encoded(part: Any) -> bytes:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def forged(header: Any, payload: Any, sign: Callable[[bytes], bytes]) -> str:
    """A token put together by hand: libraries refuse to make most of these."""
    body = encoded(header) + b"." + encoded(payload)
    return (body + b"." + encoded(sign(body))).decode()


def hmac_with(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda body: hmac.new(secret, body, hashlib.sha256).digest()


def rs256(body: bytes) -> bytes:
    return jwt.get_algorithm_by_name("RS256").sign(body, OURS)


def tampered() -> str:
    header, _, signature = signed().split(".")
    return ".".join((header, encoded(claims(tenant_id="other", roles=["admin"])).decode(), signature))


@pytest.fixture
def verifier(tmp_path: Path) -> JwtVerifier:
    file = tmp_path / "public.pem"
    file.write_bytes(PEM)
    return build(key_file=str(file))


def build(**changes: Any) -> JwtVerifier:
    settings = {
        "algorithm": "RS256",
        "key_file": "",
        "secret": "",
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "leeway_s": 5.0,
        **changes,
    }
    return build_jwt_verifier(**settings)


def test_a_good_token_says_whom_it_speaks_for(verifier: JwtVerifier) -> None:
    caller = verifier.verify(signed(roles=["reader", "of-another-service"], project_ids=["p"], tags=["red"]))
    assert caller == Caller(
        actor="jwt:alice",
        tenant_ids=("acme",),
        roles=frozenset({"reader"}),
        user_id="alice",
        project_ids=frozenset({"p"}),
        tags=frozenset({"red"}),
    )


def test_a_token_that_says_nothing_of_tags_has_none_and_a_star_means_all(verifier: JwtVerifier) -> None:
    assert verifier.verify(signed()).tags == frozenset()
    assert verifier.verify(signed(tags=["*"])).tags is None
    assert verifier.verify(signed()).project_ids is None
    assert verifier.verify(signed(project_ids=[])).project_ids == frozenset()
    assert verifier.verify(signed(tenant_id=None, tenant_ids=["a", "b", "a"])).tenant_ids == ("a", "b")


def test_clocks_may_differ_by_the_leeway_and_no_more(verifier: JwtVerifier) -> None:
    now = int(time.time())
    verifier.verify(signed(exp=now - 2, iat=now - 60))
    verifier.verify(signed(iat=now + 2, nbf=now + 2))
    with pytest.raises(Unauthenticated):
        verifier.verify(signed(exp=now - 30, iat=now - 60))


NOW = int(time.time())
REFUSED: dict[str, Callable[[], str]] = {
    "none": lambda: jwt.encode(claims(), "", "none"),
    "None in another case": lambda: forged({"alg": "nOnE", "typ": "JWT"}, claims(), lambda _: b""),
    "no algorithm at all": lambda: forged({"typ": "JWT"}, claims(), rs256),
    "an algorithm that is no text": lambda: forged({"alg": ["RS256"]}, claims(), rs256),
    "the public key as HS256's secret": lambda: forged({"alg": "HS256", "typ": "JWT"}, claims(), hmac_with(PEM)),
    "the same, stripped": lambda: forged({"alg": "HS256", "typ": "JWT"}, claims(), hmac_with(PEM.strip())),
    "an empty secret": lambda: forged({"alg": "HS256", "typ": "JWT"}, claims(), hmac_with(b"")),
    "another algorithm, signed by the same key": lambda: signed(algorithm="RS512"),
    "another key": lambda: signed(THEIRS),
    "another key that it brings along": lambda: signed(
        THEIRS, headers={"jwk": json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(THEIRS.public_key()))}
    ),
    "a key to be fetched": lambda: signed(THEIRS, headers={"jku": "https://evil.example/jwks", "kid": "x"}),
    "an unsigned payload": lambda: signed().rpartition(".")[0] + ".",
    "a tampered payload": tampered,
    "no exp": lambda: signed(exp=None),
    "no iat": lambda: signed(iat=None),
    "no iss": lambda: signed(iss=None),
    "no aud": lambda: signed(aud=None),
    "no sub": lambda: signed(sub=None),
    "expired": lambda: signed(exp=NOW - 3600, iat=NOW - 7200),
    "not yet valid": lambda: signed(nbf=NOW + 3600),
    "issued in the future": lambda: signed(iat=NOW + 3600, exp=NOW + 7200),
    "exp is text": lambda: forged({"alg": "RS256"}, claims(exp="never"), rs256),
    "exp is infinite": lambda: forged(
        {"alg": "RS256"}, json.dumps(claims(exp=float("inf"))).encode(), rs256
    ),
    "exp is not a number": lambda: forged({"alg": "RS256"}, json.dumps(claims(exp=float("nan"))).encode(), rs256),
    "another issuer": lambda: signed(iss="https://evil.example"),
    "another audience": lambda: signed(aud="another-service"),
    "an audience that begins like ours": lambda: signed(aud=AUDIENCE + "-admin"),
    "no tenant": lambda: signed(tenant_id=None),
    "two ways to say tenant": lambda: signed(tenant_ids=["other"]),
    "no tenants": lambda: signed(tenant_id=None, tenant_ids=[]),
    "a tenant that is a number": lambda: signed(tenant_id=7),
    "a blank tenant": lambda: signed(tenant_id="  "),
    "roles as text": lambda: signed(roles="admin"),
    "tags as text": lambda: signed(tags="*"),
    "a subject with a line break": lambda: signed(sub="alice\nadmin"),
    "a subject that is a number": lambda: forged({"alg": "RS256"}, claims(sub=7), rs256),
    "an unknown critical header": lambda: signed(headers={"crit": ["exp2"], "exp2": 1}),
    "a detached payload": lambda: signed(headers={"crit": ["b64"], "b64": False}),
    "claims that are a list": lambda: forged({"alg": "RS256"}, [claims()], rs256),
    "deeply nested claims": lambda: forged({"alg": "RS256"}, b"[" * 5000 + b"]" * 5000, rs256),
    "huge": lambda: signed(padding="x" * MAX_TOKEN_CHARS),
    "one part": lambda: "abc",
    "two parts": lambda: "abc.def",
    "five parts": lambda: "a.b.c.d.e",
    "dots": lambda: "..",
    "not base64": lambda: "!!!.###.$$$",
    "not ASCII": lambda: "é.é.é",
}  # fmt: skip


@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_a_good_token_is_refused(verifier: JwtVerifier, token: Callable[[], str]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        verifier.verify(token())
    assert len(str(caught.value)) < 120


def test_a_refusal_quotes_nothing_of_the_token(verifier: JwtVerifier) -> None:
    for token in (signed(aud=CANARY), signed(iss=CANARY), signed(tenant_id=None, tags=CANARY), CANARY, signed(THEIRS)):
        with pytest.raises(Unauthenticated) as caught:
            verifier.verify(token)
        assert CANARY not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_shared_secret_takes_hs256_and_nothing_else() -> None:
    verifier = build(algorithm="HS256", secret=SECRET)
    assert verifier.verify(signed(SECRET, "HS256")).user_id == "alice"
    for token in (signed(SECRET + "x", "HS256"), signed(SECRET, "HS512"), signed(), jwt.encode(claims(), "", "none")):
        with pytest.raises(Unauthenticated):
            verifier.verify(token)


# ------------------------------------------------------------------------------------------------------ sets of keys


def jwk(key: Any, algorithm: str, **more: Any) -> dict[str, Any]:
    return {**json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key())), **more}


def key_set(tmp_path: Path, *keys: dict[str, Any], algorithm: str = "RS256") -> JwtVerifier:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    return build(key_file=str(file), algorithm=algorithm)


def test_of_a_set_the_named_key_counts(tmp_path: Path) -> None:
    verifier = key_set(tmp_path, jwk(OURS, "RS256", kid="old"), jwk(THEIRS, "RS256", kid="new"))
    verifier.verify(signed(OURS, headers={"kid": "old"}))
    verifier.verify(signed(THEIRS, headers={"kid": "new"}))
    for key, headers in ((OURS, {"kid": "new"}), (OURS, {"kid": "unknown"}), (OURS, {})):
        with pytest.raises(Unauthenticated):
            verifier.verify(signed(key, headers=headers))


def test_of_a_set_keys_for_other_uses_and_algorithms_do_not_count(tmp_path: Path) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    verifier = key_set(
        tmp_path,
        jwk(THEIRS, "RS256", kid="encrypts", use="enc"),
        jwk(THEIRS, "RS256", kid="other-algorithm", alg="RS512"),
        jwk(curve, "ES256", kid="curve"),
        {"kty": "oct", "kid": "shared", "k": encoded(SECRET.encode()).decode()},
        jwk(OURS, "RS256", kid="ours"),
    )
    verifier.verify(signed(OURS, headers={"kid": "ours"}))
    for key, algorithm, kid in (
        (THEIRS, "RS256", "encrypts"),
        (THEIRS, "RS256", "other-algorithm"),
        (curve, "ES256", "curve"),
        (SECRET, "HS256", "shared"),
    ):
        with pytest.raises(Unauthenticated):
            verifier.verify(signed(key, algorithm, headers={"kid": kid}))


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [("ES256", ec.generate_private_key(ec.SECP256R1())), ("EdDSA", ed25519.Ed25519PrivateKey.generate())],
)
def test_other_kinds_of_keys_work_too(tmp_path: Path, algorithm: str, key: Any) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(public_pem(key))
    verifier = build(algorithm=algorithm, key_file=str(file))
    assert verifier.verify(signed(key, algorithm)).user_id == "alice"
    with pytest.raises(Unauthenticated):
        verifier.verify(signed())


# ------------------------------------------------------------------------------------------------------------- start


def test_keys_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    private = tmp_path / "private.pem"
    private.write_bytes(
        OURS.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    garbage = tmp_path / "garbage.pem"
    garbage.write_text(f"no key {CANARY}")
    empty = tmp_path / "empty.json"
    empty.write_text('{"keys": []}')
    curve = tmp_path / "curve.pem"
    curve.write_bytes(public_pem(ec.generate_private_key(ec.SECP256R1())))
    for file in (private, garbage, empty, curve, tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match=file.name) as caught:
            build(key_file=str(file))
        assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_file": "k.pem", "issuer": "", "audience": "a"},
        {"key_file": "k.pem", "issuer": "i", "audience": ""},
        {"key_file": "k.pem", "secret": SECRET, "issuer": "i", "audience": "a"},
        {"secret": SECRET, "issuer": "i", "audience": "a"},
        {"key_file": "k.pem", "algorithm": "HS256", "issuer": "i", "audience": "a"},
        {"secret": "short", "algorithm": "HS256", "issuer": "i", "audience": "a"},
        {"algorithm": "none"},
    ],
)
def test_settings_that_would_check_less_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Jwt.model_validate(wrong)
