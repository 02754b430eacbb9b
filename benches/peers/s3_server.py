"""A server that speaks as much of S3 as readers need, over a directory, with a delay before each answer.

    python benches/peers/s3_server.py <directory> [--delay-ms 20] [--rate 100]

Directories of the directory are buckets. It prints its port, answers to everybody, and on a line of its standard input
prints how many requests there were since the last one, and how many of them it refused. Writes are multipart uploads or
whole objects. With a rate it refuses (503) what is more than so many requests in the second before.
"""

import argparse
import asyncio
import collections
import email.utils
import hashlib
import os
import sys
import time
import urllib.parse
import xml.sax.saxutils as xml


def listed(root, bucket, query):
    """A page of ListObjectsV2 with all objects below a prefix."""
    prefix = query.get("prefix", [""])[0]
    delimiter = query.get("delimiter", [""])[0]
    base = os.path.join(root, bucket)
    objects, prefixes = [], set()
    for directory, _, names in os.walk(os.path.join(base, os.path.dirname(prefix))):
        for name in names:
            key = os.path.relpath(os.path.join(directory, name), base)
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix):]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                objects.append(key)
    objects.sort()
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    objects = [key for key in objects if key > after]
    page, rest = objects[:1000], objects[1000:]
    out = [f"<Name>{bucket}</Name><Prefix>{xml.escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"]
    out.append(f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>")
    if rest:
        out.append(f"<NextContinuationToken>{xml.escape(page[-1])}</NextContinuationToken>")
    for key in page:
        stat = os.stat(os.path.join(base, key))
        time = email.utils.formatdate(stat.st_mtime, usegmt=True)
        time = "-".join([time[12:16], f"{MONTHS.index(time[8:11]) + 1:02}", time[5:7]]) + f"T{time[17:25]}.000Z"
        out.append(
            f"<Contents><Key>{xml.escape(key)}</Key><LastModified>{time}</LastModified>"
            f"<ETag>&quot;{tag(stat)}&quot;</ETag><Size>{stat.st_size}</Size></Contents>"
        )
    out += [f"<CommonPrefixes><Prefix>{xml.escape(prefix)}</Prefix></CommonPrefixes>" for prefix in sorted(prefixes)]
    return f'<?xml version="1.0"?><ListBucketResult>{"".join(out)}</ListBucketResult>'.encode()


MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def tag(stat):
    return hashlib.md5(f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}".encode()).hexdigest()


class Server:
    def __init__(self, root, delay, rate):
        self.root, self.delay, self.rate, self.uploads = root, delay, rate, {}
        self.requests, self.refused, self.answered = 0, 0, collections.deque()

    def refuses(self):
        """Whether there were too many requests in the last second."""
        now = time.monotonic()
        while self.answered and self.answered[0] < now - 1:
            self.answered.popleft()
        if self.rate and len(self.answered) >= self.rate:
            return True
        self.answered.append(now)
        return False

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = dict(line.lower().split(": ", 1) if ": " in line else (line, "") for line in lines[1:] if line)
                raw = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests += 1
                if self.refuses():
                    self.refused += 1
                    await self.send(writer, 503, [], b"<Error><Code>SlowDown</Code></Error>")
                    continue
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self.answer(writer, method, target, headers, raw, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, method, target, headers, raw, body):
        path, _, query = target.partition("?")
        query = urllib.parse.parse_qs(query, keep_blank_values=True)
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        file = os.path.join(self.root, bucket, key)
        if method == "GET" and (not key or "list-type" in query):
            return await self.send(writer, 200, [], listed(self.root, bucket, query))
        if method == "POST" and "uploads" in query:
            name = str(len(self.uploads) + 1)
            self.uploads[name] = {}
            return await self.send(writer, 200, [], f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                                   "</InitiateMultipartUploadResult>".encode())
        if method == "PUT" and "partNumber" in query:
            self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return await self.send(writer, 200, [("ETag", f'"{len(body)}"')], b"")
        if method in ("PUT", "POST"):
            if method == "POST":
                parts = self.uploads.pop(query["uploadId"][0])
                body = b"".join(parts[number] for number in sorted(parts))
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as out:
                out.write(body)
            answer = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
            return await self.send(writer, 200, [("ETag", f'"{tag(os.stat(file))}"')], answer if method == "POST" else b"")
        if method == "DELETE":
            return await self.send(writer, 204, [], b"")
        if not os.path.isfile(file):
            return await self.send(writer, 404, [], b"<Error><Code>NoSuchKey</Code></Error>")
        await self.send_file(writer, method, file, headers)

    async def send(self, writer, status, headers, body):
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nContent-Type: application/xml\r\n"
        writer.write((head + "".join(f"{k}: {v}\r\n" for k, v in headers) + "\r\n").encode() + body)
        await writer.drain()

    async def send_file(self, writer, method, file, headers):
        stat = os.stat(file)
        first, last, status = 0, stat.st_size - 1, 200
        if "range" in headers:
            begin, _, end = headers["range"].removeprefix("bytes=").partition("-")
            if begin:
                first, last = int(begin), min(int(end) if end else last, last)
            else:
                first = max(0, stat.st_size - int(end))
            status = 206
        length = last - first + 1
        modified = email.utils.formatdate(stat.st_mtime, usegmt=True)
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nETag: \"{tag(stat)}\"\r\nAccept-Ranges: bytes\r\n"
            f"Last-Modified: {modified}\r\nContent-Type: binary/octet-stream\r\n"
        )
        if status == 206:
            head += f"Content-Range: bytes {first}-{last}/{stat.st_size}\r\n"
        writer.write((head + "\r\n").encode())
        if method == "HEAD" or length <= 0:
            return await writer.drain()
        with open(file, "rb") as source:
            if length <= 1 << 20:
                source.seek(first)
                writer.write(source.read(length))
                await writer.drain()
            else:
                await writer.drain()
                loop = asyncio.get_running_loop()
                await loop.sendfile(writer.transport, source, first, length)


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--rate", type=int, default=0)
    arguments = parser.parse_args()
    server = Server(arguments.directory, arguments.delay_ms / 1000, arguments.rate)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(server.requests, server.refused, flush=True)
        server.requests = server.refused = 0


if __name__ == "__main__":
    asyncio.run(main())
