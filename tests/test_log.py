import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import log


def test_json_lines_hold_fields_and_no_secret() -> None:
    out = io.StringIO()
    log.setup(json_lines=True, stream=out)
    logger = logging.getLogger("tidegate.test")
    log.event(logger, logging.INFO, "sink opened", uri="kafka://user:pw1@h/t?sasl-password=pw2&x=1", rows=3)
    line = json.loads(out.getvalue())
    assert (line["message"], line["level"], line["rows"]) == ("sink opened", "info", 3)
    assert "pw" not in out.getvalue()
    assert line["uri"].endswith("&x=1")


def test_human_lines_show_fields_behind_the_message() -> None:
    out = io.StringIO()
    log.setup(stream=out)
    log.event(logging.getLogger("tidegate.test"), logging.WARNING, "puller ended", exit_code=-9)
    assert "WARNING puller ended  exit_code=-9" in out.getvalue()


def test_secrets_are_found_in_json_and_in_options() -> None:
    text = log.redact("""{"sasl_password": "abc"} --token=def secret_access_key: ghi mysql://root:jkl@db/""")
    assert not any(word in text for word in ("abc", "def", "ghi", "jkl"))


NAMES = st.sampled_from(
    ["password", "sasl_password", "sasl-password", "PWD", "pwd", "account-key", "secret_access_key", "token",
     "sig", "Authorization", "ssl.key.password", "x-amz-signature", "api_key", "dbPassword"]
)  # fmt: skip
SECRETS = st.text(st.characters(exclude_categories=["C"], exclude_characters="&"), min_size=1).map(
    lambda text: "q7" + text + "7q"
)


def in_json(name: str, secret: str) -> str:
    return json.dumps({"a": 1, name: secret, "z": 2})


SHAPES = {
    "query": lambda name, secret: f"kafka://h:9092/t?a=1&{name}={secret}&z=2",
    "json": in_json,
    "json in json": lambda name, secret: json.dumps({"text": in_json(name, secret)}),
    "json in json in json": lambda name, secret: json.dumps([json.dumps({"text": in_json(name, secret)})]),
    "python": lambda name, secret: f"{{'a': 1, {name!r}: {secret!r}, 'z': 2}}",
    "line": lambda name, secret: f"{name}: {secret}\nz: 2",
    "option": lambda name, secret: f"--a=1 --{name}={secret}",
    "user": lambda name, secret: f"mysql://root:{secret.replace(' ', '')}@db:4000/z?y=2",
    "key": lambda name, secret: f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY----- z",
    "cut key": lambda name, secret: f"-----BEGIN PRIVATE KEY-----\n{secret}",
}


@pytest.mark.parametrize("shape", SHAPES)
@given(name=NAMES, secret=SECRETS)
def test_no_secret_of_any_shape_is_shown(shape: str, name: str, secret: str) -> None:
    if shape == "user":
        secret = "".join(sign for sign in secret if sign not in "\"'<>?" and not sign.isspace())
    text = SHAPES[shape](name, secret)
    assert secret in text or shape in ("json in json", "json in json in json", "json", "python", "user")
    hidden = log.redact(text)
    assert "q7" not in hidden
    assert "7q" not in hidden
    assert log.HIDDEN in hidden


def test_what_is_no_secret_stays() -> None:
    text = "cannot read kafka://h:9092/t?protocol=open-protocol&x=1: {'rows': 3, \"state\": 'ok'} sign=4"
    assert log.redact(text) == text
    assert log.redact(in_json("password", "a, b; c} d")) == '{"a": 1, "password": "xxxxx", "z": 2}'
    assert log.redact("kafka://u:p/w@d@h/t?password=a;b c&x=1") == "kafka://xxxxx@h/t?password=xxxxx&x=1"


@pytest.mark.parametrize(
    "piece",
    ["a", "a=", "://", "://a@", "password", 'password="', '\\"', "-----BEGIN PRIVATE KEY-----", " = "],
)
def test_a_long_text_takes_time_by_its_length_alone(piece: str) -> None:
    """With time by its square this would take hours."""
    assert len(log.redact(piece * (4_000_000 // len(piece)))) > 0
