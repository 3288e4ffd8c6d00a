#!/usr/bin/env python3
"""Send one chat request where its prefix is already cached.

Asks a Warmpath router over HTTP where the request goes, and sends it there.
Needs nothing but Python; the router needs the pool's tokenizer (--tokenizer).

    WARMPATH_ROUTER=http://127.0.0.1:7010 WARMPATH_POOL=chat \\
        python3 route.py < request.json

A replica that cannot be reached is excluded and the router asked again. Without a
router, the request goes to WARMPATH_FALLBACK, if that is set. README.md beside this
file says what counting and publishing mean for a gateway of your own.
"""

import json
import os
import sys
import urllib.error
import urllib.request
import uuid

ATTEMPTS = 3
# Seconds: what an engine may take to tokenize, and a margin.
ROUTER_TIMEOUT = float(os.environ.get("WARMPATH_ROUTER_TIMEOUT", "2"))
ENGINE_TIMEOUT = 600


class NoDecision(Exception):
    """The router's reason, in words; code is INVALID, NOT_READY or NO_REPLICA."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def post(url, body, timeout, headers=None):
    """POST a JSON object and return the answer's."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def ask(router, pool, gateway, request_id, chat, attempt=0, exclude=()):
    """Ask where a chat request goes. chat is its body, as the client sent it."""
    question = {
        "pool": pool,
        "gateway": gateway,
        "request_id": request_id,  # the same in all attempts, and never used again
        "attempt": attempt,
        "chat": chat,
        "exclude": list(exclude),
    }
    try:
        return post(router + "/v1/route", question, ROUTER_TIMEOUT)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
        code = answer.get("errorCode", "").removeprefix("ROUTE_ERROR_CODE_")
        raise NoDecision(code, answer.get("error", str(error))) from None


def complete(router, pool, gateway, chat, fallback=None):
    """Send a chat request to the replica that the router chooses."""
    request_id = str(uuid.uuid4())
    exclude = []
    for attempt in range(ATTEMPTS):
        headers = {"X-Request-Id": request_id}
        replica, predicted, address = None, 0, fallback
        try:
            answer = ask(router, pool, gateway, request_id, chat, attempt, exclude)
        except NoDecision as error:
            if error.code == "INVALID" or fallback is None:
                raise
        except (urllib.error.URLError, TimeoutError):
            if fallback is None:
                raise
        else:
            decision = answer["decision"]
            address, replica = answer["address"], decision["chosen"]
            # 64-bit numbers are strings in protobuf's JSON; zeros are left out.
            predicted = int(decision.get("predictedCachedTokens", 0))
            if "dataParallelRank" in answer:
                headers["X-data-parallel-rank"] = str(answer["dataParallelRank"])
        try:
            reply = post(address + "/v1/chat/completions", chat, ENGINE_TIMEOUT, headers)
        except urllib.error.HTTPError:
            raise  # the engine's own answer, to pass on
        except (urllib.error.URLError, TimeoutError):
            if replica is None or attempt == ATTEMPTS - 1:
                raise
            exclude.append(replica)
            continue
        return {"replica": replica, "attempt": attempt, "predicted_cached_tokens": predicted, "reply": reply}


def main():
    try:
        result = complete(
            os.environ.get("WARMPATH_ROUTER", "http://127.0.0.1:7010").rstrip("/"),
            os.environ.get("WARMPATH_POOL", "chat"),
            os.environ.get("WARMPATH_GATEWAY", "python-example"),
            json.load(sys.stdin),
            os.environ.get("WARMPATH_FALLBACK"),
        )
    except (NoDecision, urllib.error.URLError) as error:
        sys.exit(f"route.py: {error}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
