"""A stand-in for the service that gives a role's temporary credentials (STS), which may hang."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.servers.s3_server import S3

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


class StsServer:
    """Gives the credentials of an S3 server, as an account's whose number is that of the answer.

    There is no session token, which the S3 server would refuse. The credentials expire after `seconds`. While
    it `hangs`, a request is not answered; `asked` counts all.
    """

    def __init__(self, s3: S3, folder: Path, seconds: float) -> None:
        self.s3, self.seconds = s3, seconds
        self.hangs, self._ended = threading.Event(), threading.Event()
        self.asked = self.answered = 0
        self._token = folder / "token"
        self._token.write_text("the token of a pod")
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                server.asked += 1
                while server.hangs.is_set() and not server._ended.wait(0.02):
                    pass
                content = server._answer()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a pod with a role has."""
        return {
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/agent",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(self._token),
            "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_DEFAULT_REGION": self.s3.region,
        }

    def __enter__(self) -> StsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self) -> bytes:
        self.answered += 1
        until = datetime.now(timezone.utc) + timedelta(seconds=self.seconds)
        return f"""<AssumeRoleWithWebIdentityResponse xmlns="{NAMESPACE}"><AssumeRoleWithWebIdentityResult>
            <AssumedRoleUser>
              <Arn>arn:aws:sts::{self.answered:012}:assumed-role/agent/it</Arn>
              <AssumedRoleId>R:it</AssumedRoleId>
            </AssumedRoleUser>
            <Credentials>
              <AccessKeyId>{self.s3.access_key}</AccessKeyId>
              <SecretAccessKey>{self.s3.secret_key}</SecretAccessKey>
              <SessionToken></SessionToken>
              <Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration>
            </Credentials>
            </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()
