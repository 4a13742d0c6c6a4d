"""JSON Web Tokens by PyJWT: one fixed algorithm, keys chosen here and never by the token's header.

Source: RFC 8725 (best current practices): 3.1 algorithm verification, 3.8 issuer, 3.9 audience.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jwt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dats_common.contracts.fields import MAX_TAGS, Identifier, Tag, TenantId
from dats_common.domain.access import ROLES, Caller
from dats_common.errors import ConfigurationError, Unauthenticated

MAX_TOKEN_CHARS = 8192
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
ALL = "*"


class _Claims(BaseModel):
    """The claims that make a caller. Roles that are not ours belong to other services and say nothing here."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, hide_input_in_errors=True)

    sub: Identifier
    tenant_id: TenantId | None = None
    tenant_ids: Annotated[list[TenantId], Field(min_length=1, max_length=100)] | None = None
    roles: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    project_ids: Annotated[list[Identifier], Field(max_length=1000)] | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = Field(default_factory=list)


class JwtVerifier:
    """`ports.TokenVerifier`."""

    def __init__(
        self, keys: Mapping[str | None, Any], *, algorithm: str, issuer: str, audience: str, leeway_s: float
    ) -> None:
        self._keys = keys
        self._algorithm = algorithm
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s

    def verify(self, token: str) -> Caller:
        if len(token) > MAX_TOKEN_CHARS:
            raise Unauthenticated(f"the token has more than {MAX_TOKEN_CHARS} characters")
        try:
            claims = jwt.decode(
                token,
                self._key_for(token),
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": _REQUIRED, "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            # The class says what is wrong; the library's words may quote the token.
            raise Unauthenticated(f"the token is not good: {type(error).__name__}") from None
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise Unauthenticated("the token is not good: it cannot be read") from None
        return self._caller(claims)

    def _key_for(self, token: str) -> Any:
        """The key that the header's `kid` names, or the only one. The header names nothing else: no `jwk`, no URL."""
        kid = jwt.get_unverified_header(token).get("kid")
        if kid not in self._keys and len(self._keys) == 1 and (kid is None or None in self._keys):
            return next(iter(self._keys.values()))
        try:
            return self._keys[kid]
        except (KeyError, TypeError):
            raise Unauthenticated("the token is not good: it is signed with an unknown key") from None

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        try:
            read = _Claims.model_validate(claims)
        except ValidationError as error:
            fields = ", ".join(str(each["loc"][0]) for each in error.errors(include_input=False)[:3])
            raise Unauthenticated(f"the token is not good: claims {fields}") from None
        tenants = read.tenant_ids or ([read.tenant_id] if read.tenant_id else [])
        if not tenants or (read.tenant_id and read.tenant_ids):
            raise Unauthenticated("the token is not good: it needs tenant_id or tenant_ids")
        return Caller(
            actor=f"jwt:{read.sub}",
            tenant_ids=tuple(dict.fromkeys(tenants)),
            roles=frozenset(read.roles) & frozenset(ROLES),
            user_id=read.sub,
            project_ids=None if read.project_ids is None else frozenset(read.project_ids),
            # Tags are clearances: a token that says nothing of them has none.
            tags=None if ALL in read.tags else frozenset(read.tags),
        )


def build_jwt_verifier(
    *, algorithm: str, key_file: str, secret: str, issuer: str, audience: str, leeway_s: float
) -> JwtVerifier:
    """The verifier over the keys of a file, or one shared secret. A new file needs a restart.

    Raises: ConfigurationError: the file cannot be read, or holds no key of the algorithm.
    """
    keys: Mapping[str | None, Any] = {None: secret} if secret else _public_keys(Path(key_file), algorithm)
    return JwtVerifier(keys, algorithm=algorithm, issuer=issuer, audience=audience, leeway_s=leeway_s)


def _public_keys(file: Path, algorithm: str) -> Mapping[str | None, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"auth.jwt.key_file {file} cannot be read: {type(error).__name__}") from error
    if "PRIVATE KEY" in text:
        raise ConfigurationError(f"auth.jwt.key_file {file} holds a private key; the service needs the public one")
    try:
        if text.lstrip().startswith("{"):
            return _keys_of_set(json.loads(text), algorithm, file)
        return {None: jwt.get_algorithm_by_name(algorithm).prepare_key(text)}
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ConfigurationError(f"auth.jwt.key_file {file} holds no key for {algorithm}") from error


def _keys_of_set(document: Any, algorithm: str, file: Path) -> Mapping[str | None, Any]:
    """The keys of a JWKS that are for signatures of this algorithm, by `kid`."""
    found: dict[str | None, Any] = {}
    prepare = jwt.get_algorithm_by_name(algorithm)
    for entry in document.get("keys", []):
        if entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm or "d" in entry:
            continue
        try:
            found[entry.get("kid")] = prepare.from_jwk(entry)
        except jwt.PyJWTError:  # of another kind of key
            continue
    if not found:
        raise ConfigurationError(f"auth.jwt.key_file {file} holds no public key for {algorithm}")
    return found
