"""A stand-in for the Hugging Face Hub: it serves a folder, ROOT/OWNER/REPO/FILES, by the routes that downloads use.

    with HubStub(root) as hub:      # hub.endpoint is the HF_ENDPOINT, hub.log what was asked

A repository may hold `.hub.json` (never listed), all keys optional: gated ("auto" or "manual"), private, disabled,
token (the one that opens it), licence. Large files are redirected to another origin, as the real Hub does.

Faults are put into `hub.faults`; each has a part of the request's path, a method, how often it fires (-1: always)
and a kind:
    cut      send `after` bytes of the body, then close the connection; reset: close it hard
    status   answer `status` with `headers`
    hang     answer nothing for `after` seconds; delay: answer after that time
    stall    send `after` bytes of the body, then nothing for STALL_SECONDS
    norange  ignore the Range header; corrupt: flip the first byte of the body; nohdr: leave out the `headers`
    slow     send the body at `after` bytes a second
    elsewhere  redirect to `headers["location"]`
    drip     answer a byte every `after` seconds without end: `headers["part"]` says whether in the "head" or the "body"
    raw      send `headers["raw"]` (a string of bytes, or bytes) and close the connection
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

LFS_MIN = 10 * 1024 * 1024  # the real Hub: binary files or files over 10 MB; here also every *.gguf
STALL_SECONDS = 30
LFS_EXT = (".gguf", ".safetensors", ".bin")


@dataclasses.dataclass
class Fault:
    path: str = ""
    method: str = "GET"
    kind: str = "cut"
    times: int = 1
    after: float = 0
    status: int = 503
    headers: dict = dataclasses.field(default_factory=dict)


class Repo:
    def __init__(self, folder: Path, repo_id: str):
        self.folder, self.id = folder, repo_id
        meta = folder / ".hub.json"
        self.meta = json.loads(meta.read_text()) if meta.is_file() else {}
        self._hash: dict[str, tuple] = {}

    def files(self) -> dict[str, Path]:
        out = {}
        for p in sorted(self.folder.rglob("*")):
            rel = p.relative_to(self.folder).as_posix()
            if p.is_file() and rel != ".hub.json" and not rel.startswith(".git/"):
                out[rel] = p
        return out

    def info(self, rel: str, p: Path) -> dict:
        st = p.stat()
        key = (st.st_mtime_ns, st.st_size)
        hit = self._hash.get(rel)
        if hit is None or hit[0] != key:
            s256, s1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % st.st_size)
            with p.open("rb") as f:
                while chunk := f.read(1 << 20):
                    s256.update(chunk)
                    s1.update(chunk)
            hit = (key, s256.hexdigest(), s1.hexdigest())
            self._hash[rel] = hit
        lfs = rel.lower().endswith(LFS_EXT) or st.st_size >= LFS_MIN
        sha256, git_oid = hit[1], hit[2]
        if lfs:  # the git oid of an LFS file is the oid of its pointer
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {st.st_size}\n".encode()
            git_oid = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
            return {"size": st.st_size, "oid": git_oid, "sha256": sha256, "lfs": True, "pointerSize": len(pointer)}
        return {"size": st.st_size, "oid": git_oid, "sha256": sha256, "lfs": False, "pointerSize": None}

    @property
    def sha(self) -> str:
        """The commit: given, or made from names, sizes and contents (so it changes when a file does)."""
        if "sha" in self.meta:
            return self.meta["sha"]
        h = hashlib.sha1()
        for rel, p in self.files().items():
            i = self.info(rel, p)
            h.update(f"{rel}\0{i['sha256']}\n".encode())
        return h.hexdigest()

    def revision_ok(self, rev: str) -> bool:
        return rev in ("main", "HEAD", self.sha, "refs/heads/main", *self.meta.get("revisions", []))


class HubStub:
    def __init__(self, root, host="127.0.0.1", port=0, cdn_other_origin=True, page_size=1000):
        self.root = Path(root)
        self.host = host
        self.faults: list[Fault] = []
        self.log: list[dict] = []
        self.repos: dict[str, Repo] = {}
        self.page_size = page_size
        self.listing: object = None  # what a hostile server lists instead
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        handler = type("H", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer((host, port), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.endpoint = f"http://{host}:{self.port}"
        # The real Hub redirects LFS files to another host (CDN). Another port is another origin for
        # huggingface_hub, so a second listener gives the same behaviour: HEAD stops at the redirect, and the
        # authorization header is not sent on.
        self.cdn = ThreadingHTTPServer((host, 0), handler) if cdn_other_origin else None
        if self.cdn is not None:
            self.cdn.daemon_threads = True
        self.cdn_base = f"http://{host}:{self.cdn.server_address[1]}" if self.cdn else self.endpoint

    def __enter__(self):
        for s in filter(None, (self.server, self.cdn)):
            threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.stopping.set()
        for s in filter(None, (self.server, self.cdn)):
            s.shutdown()
            s.server_close()

    def repo(self, repo_id: str) -> Repo | None:
        folder = self.root / repo_id
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id) or ".." in repo_id or not folder.is_dir():
            return None
        r = self.repos.get(repo_id)
        if r is None:
            r = self.repos[repo_id] = Repo(folder, repo_id)
        return r

    def take_fault(self, method: str, path: str, kinds) -> Fault | None:
        with self.lock:
            for f in self.faults:
                if f.times != 0 and f.kind in kinds and f.method in ("*", method) and f.path in path:
                    f.times -= 1 if f.times > 0 else 0
                    return f
        return None


class _Handler(BaseHTTPRequestHandler):
    hub: HubStub
    protocol_version = "HTTP/1.1"
    server_version = "hubstub/1"

    # --- helpers -------------------------------------------------------------------------------------------
    def log_message(self, *a):
        pass

    def note(self, status, **kw):
        auth = self.headers.get("Authorization")
        self.hub.log.append(
            {
                "method": self.command,
                "path": self.path,
                "status": status,
                "range": self.headers.get("Range"),
                "auth": bool(auth),
                "encoding": self.headers.get("Accept-Encoding"),
                "port": self.server.server_address[1],
                **kw,
            }
        )

    def answer(self, status, body=b"", ctype="application/json", headers=None, drop=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.note(status)
        self.send_response(status)
        all_headers = {
            "Content-Type": ctype,
            "Content-Length": str(len(body)),
            "X-Request-Id": "Root=stub",
            **(headers or {}),
        }
        for k, v in all_headers.items():
            if k not in drop:
                self.send_header(k, v)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code=None, message="", extra=None):
        h = dict(extra or {})
        if code:
            h["X-Error-Code"] = code
        if message:
            h["X-Error-Message"] = message
        self.answer(status, {"error": message}, headers=h)

    def token(self):
        a = self.headers.get("Authorization", "")
        return a[7:] if a.startswith("Bearer ") else None

    def open_repo(self, repo_id, need_content):
        """The repo if the caller may see it, else None after answering."""
        r = self.hub.repo(repo_id)
        tok = self.token()
        if r is None or (r.meta.get("private") and tok != r.meta.get("token")):
            # The real Hub: 401 RepoNotFound for anonymous callers, 404 RepoNotFound with a valid token.
            if tok is None:
                self.error(
                    401,
                    "RepoNotFound",
                    "Repository not found",
                    {"WWW-Authenticate": 'Bearer realm="Authentication required"'},
                )
            else:
                self.error(404, "RepoNotFound", "Repository not found")
            return None
        if r.meta.get("disabled"):
            self.error(403, None, "Access to this resource is disabled.")
            return None
        if need_content and r.meta.get("gated") and tok != r.meta.get("token"):
            msg = f"Access to model {repo_id} is restricted. Please log in."
            if tok is None:
                self.error(401, "GatedRepo", msg)
            else:
                msg = f"You are not in the authorized list. Visit {self.hub.endpoint}/{repo_id} to ask for access."
                self.error(403, "GatedRepo", msg)
            return None
        return r

    def revision(self, r: Repo, rev):
        if r.revision_ok(rev):
            return True
        self.error(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        return False

    # --- verbs ---------------------------------------------------------------------------------------------
    def do_HEAD(self):
        self.route()

    def do_GET(self):
        self.route()

    def do_POST(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.route()

    def route(self):
        u = urlsplit(self.path)
        path, q = unquote(u.path), parse_qs(u.query)
        f = self.hub.take_fault(self.command, path, ("status", "hang", "delay", "elsewhere", "drip", "raw"))
        if f is not None and f.kind == "elsewhere":
            return self.answer(307, b"", headers={"Location": f.headers["location"]})
        if f is not None and f.kind == "status":
            return self.answer(f.status, {"error": "stub"}, headers=f.headers)
        if f is not None and f.kind in ("drip", "raw"):
            return self.odd(f)
        if f is not None and f.kind == "hang":
            self.hub.stopping.wait(f.after)
            self.close_connection = True
            return self.note(0, fault="hang")
        if f is not None and f.kind == "delay":
            time.sleep(f.after)

        if m := re.fullmatch(r"/cdn/([0-9a-f]{64})/(.+)", path):
            return self.serve_blob(m[1], m[2])
        if path == "/api/whoami-v2":
            if self.token() is None:
                return self.error(401, None, "Invalid credentials in Authorization header")
            return self.answer(200, {"type": "user", "name": "stub", "auth": {"accessToken": {"role": "read"}}})
        # split the raw path: a revision may hold an encoded slash (refs%2Fpr%2F1)
        raw = [unquote(s) for s in u.path.strip("/").split("/")]
        if raw[:2] == ["api", "models"] and len(raw) >= 4:
            return self.api(f"{raw[2]}/{raw[3]}", raw[4:], q)
        if len(raw) >= 5 and raw[2] in ("resolve", "raw"):
            return self.resolve(f"{raw[0]}/{raw[1]}", raw[3], "/".join(raw[4:]))
        self.error(404, None, "Not Found")
        return None

    def odd(self, f: Fault):
        """Bytes that no server should send."""
        self.note(0, fault=f.kind)
        self.close_connection = True
        raw = f.headers.get("raw", "")
        data = raw if isinstance(raw, bytes) else raw.encode("latin-1")
        if f.kind == "drip":
            data = b"HTTP/1.1 200 OK\r\nX-Long: " if f.headers.get("part") == "head" else b"HTTP/1.1 200 OK\r\n\r\n["
        with contextlib.suppress(OSError):
            self.wfile.write(data)
            while f.kind == "drip" and not self.hub.stopping.wait(f.after):
                self.wfile.write(b" ")

    # --- api -----------------------------------------------------------------------------------------------
    def api(self, repo_id, rest, q):
        r = self.open_repo(repo_id, need_content=bool(rest) and rest[0] in ("tree", "paths-info", "auth-check"))
        if r is None:
            return None
        if not rest:
            return self.answer(200, self.model_info(r, q))
        what = rest[0]
        if what == "revision" and len(rest) >= 2:
            return self.revision(r, rest[1]) and self.answer(200, self.model_info(r, q))
        if what == "auth-check":
            return self.answer(200, {})
        if what == "tree" and self.hub.listing is not None:
            return self.answer(200, self.hub.listing)
        if what == "tree" and len(rest) >= 2:
            return self.revision(r, rest[1]) and self.tree(r, rest[1], "/".join(rest[2:]), q)
        if what == "paths-info" and len(rest) >= 2:
            if not self.revision(r, rest[1]):
                return None
            data = parse_qs(self.body.decode())
            if self.headers.get("Content-Type", "").startswith("application/json"):
                data = json.loads(self.body)
            files = r.files()
            return self.answer(200, [self.entry(r, p, files[p]) for p in data.get("paths", []) if p in files])
        self.error(404, None, "Not Found")
        return None

    def model_info(self, r: Repo, q):
        files = r.files()
        blobs = q.get("blobs", [""])[0].lower() == "true"
        sib = []
        for rel, p in files.items():
            s = {"rfilename": rel}
            if blobs:
                i = r.info(rel, p)
                s |= {"size": i["size"], "blobId": i["oid"]}
                if i["lfs"]:
                    s["lfs"] = {"sha256": i["sha256"], "size": i["size"], "pointerSize": i["pointerSize"]}
            sib.append(s)
        card = dict(r.meta.get("cardData", {}))
        if "licence" in r.meta:
            card["license"] = r.meta["licence"]
        full = {
            "_id": hashlib.sha1(r.id.encode()).hexdigest()[:24],
            "id": r.id,
            "modelId": r.id,
            "author": r.id.split("/")[0],
            "sha": r.sha,
            "private": bool(r.meta.get("private")),
            "gated": r.meta.get("gated", False),
            "disabled": bool(r.meta.get("disabled")),
            "downloads": 0,
            "likes": 0,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "tags": r.meta.get("tags", ["gguf"]),
            "siblings": sib,
            "cardData": card,
        }
        if "gguf" in r.meta:
            full["gguf"] = r.meta["gguf"]
        expand = q.get("expand")
        if expand:  # the Hub then returns only _id, id and what was asked for
            full = {k: v for k, v in full.items() if k in ("_id", "id", *expand)}
        return full

    def entry(self, r, rel, p):
        i = r.info(rel, p)
        e = {"type": "file", "oid": i["oid"], "size": i["size"], "path": rel}
        if i["lfs"]:
            e["lfs"] = {"oid": i["sha256"], "size": i["size"], "pointerSize": i["pointerSize"]}
        return e

    def tree(self, r: Repo, rev, sub, q):
        recursive = q.get("recursive", [""])[0].lower() == "true"
        files, dirs, out = r.files(), set(), []
        prefix = sub.strip("/") + "/" if sub else ""
        for rel, p in files.items():
            if not rel.startswith(prefix):
                continue
            tail = rel[len(prefix) :].split("/")
            for n in range(1, len(tail)):
                d = prefix + "/".join(tail[:n])
                if d not in dirs and (recursive or n == 1):
                    dirs.add(d)
                    out.append({"type": "directory", "oid": hashlib.sha1(d.encode()).hexdigest(), "size": 0, "path": d})
            if recursive or len(tail) == 1:
                out.append(self.entry(r, rel, p))
        if sub and not out:
            return self.error(404, "EntryNotFound", f'{sub} does not exist on "{rev}"')
        at = int(q.get("cursor", ["0"])[0])
        page, headers = out[at : at + self.hub.page_size], {}
        if at + self.hub.page_size < len(out):
            base = f"{self.hub.endpoint}/api/models/{r.id}/tree/{quote(rev, safe='')}{'/' + quote(sub) if sub else ''}"
            headers["Link"] = f'<{base}?recursive={recursive!s}&cursor={at + self.hub.page_size}>; rel="next"'
        self.answer(200, page, headers=headers)
        return None

    # --- files ---------------------------------------------------------------------------------------------
    def resolve(self, repo_id, rev, rel):
        r = self.open_repo(repo_id, need_content=True)
        if r is None or not self.revision(r, rev):
            return None
        p = r.files().get(rel)
        if p is None:
            return self.error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": r.sha})
        i = r.info(rel, p)
        f = self.hub.take_fault(self.command, self.path, ("nohdr",))
        drop = tuple(f.headers) if f else ()
        if i["lfs"]:
            loc = f"{self.hub.cdn_base}/cdn/{i['sha256']}/{r.id}/{quote(rel)}"
            return self.answer(
                302,
                b"Found",
                "text/plain",
                {
                    "X-Repo-Commit": r.sha,
                    "X-Linked-Size": str(i["size"]),
                    "X-Linked-Etag": f'"{i["sha256"]}"',
                    "Accept-Ranges": "bytes",
                    "Location": loc,
                },
                drop,
            )
        self.send_file(p, f'"{i["oid"]}"', {"X-Repo-Commit": r.sha}, drop)
        return None

    def serve_blob(self, sha, rest):
        owner, name, rel = rest.split("/", 2)
        r = self.hub.repo(f"{owner}/{name}")
        p = r and r.files().get(rel)
        if not p or r.info(rel, p)["sha256"] != sha:
            return self.error(404, None, "Not Found")
        # a same-origin CDN is followed by the client's HEAD, so it must answer with the metadata too
        self.send_file(p, f'"{sha}"', {"X-Repo-Commit": r.sha, "X-Linked-Etag": f'"{sha}"'})
        return None

    def send_file(self, p: Path, etag, headers, drop=()):
        size = p.stat().st_size
        start, end, status = 0, size - 1, 200
        rng = self.headers.get("Range")
        if rng and self.hub.take_fault(self.command, self.path, ("norange",)):
            rng = None
        if rng:
            m = re.fullmatch(r"bytes=(\d*)-(\d*)", rng)
            if m and (m[1] or m[2]):
                if m[1]:
                    start, end = int(m[1]), min(int(m[2]), size - 1) if m[2] else size - 1
                else:
                    start = max(0, size - int(m[2]))
                if start >= size or end < start:
                    return self.answer(416, b"", headers={"Content-Range": f"bytes */{size}"})
                status = 206
        n = end - start + 1 if size else 0
        h = {
            "Content-Type": "binary/octet-stream",
            "Content-Length": str(n),
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Content-Disposition": f'inline; filename="{p.name}";',
            **headers,
        }
        if status == 206:
            h["Content-Range"] = f"bytes {start}-{end}/{size}"
        cut = self.hub.take_fault(self.command, self.path, ("cut", "reset", "corrupt", "stall", "slow"))
        self.note(status, fault=cut and cut.kind, sent=n)
        self.send_response(status)
        for k, v in h.items():
            if k not in drop:
                self.send_header(k, v)
        self.end_headers()
        if self.command == "HEAD":
            return None
        left = n if cut is None or cut.kind in ("corrupt", "slow") else min(n, int(cut.after))
        piece = 1 << 20 if cut is None or cut.kind != "slow" else max(int(cut.after) // 20, 1)
        with p.open("rb") as f:
            f.seek(start)
            first = True
            while left > 0 and (chunk := f.read(min(piece, left))):
                if cut is not None and cut.kind == "slow":
                    time.sleep(0.05)
                if first and cut is not None and cut.kind == "corrupt":
                    chunk = bytes([chunk[0] ^ 0xFF]) + chunk[1:]
                first = False
                try:
                    self.wfile.write(chunk)
                except (BrokenPipeError, ConnectionResetError):
                    return None
                left -= len(chunk)
        if cut is not None and cut.kind == "stall":
            self.wfile.flush()
            self.hub.stopping.wait(STALL_SECONDS)
            self.close_connection = True
        if cut is not None and cut.kind in ("cut", "reset"):
            self.close_connection = True
            self.wfile.flush()
            if cut.kind == "reset":
                time.sleep(0.2)  # let the client read what was sent
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            else:
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
        return None

    def handle(self):
        with contextlib.suppress(ValueError, OSError):  # the client went away, or we reset the socket
            super().handle()
