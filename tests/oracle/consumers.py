"""Consumers of `blockyard serve` for the checks of resumed queries: several of one run, in steps of global batches."""

import json
import os
import signal
import socket
import subprocess
import tempfile

import pyarrow as pa

# How long a consumer may wait.
SECONDS = 60


class Consumer:
    """The connection of one of them."""

    def __init__(self, path, number):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")
        self.send({"protocol": 1, "consumer": number, "prefetch_batches": 2})
        self.receive()
        self.stream, self.batches, self.has_ended = None, 0, True

    def send(self, line):
        self.socket.sendall(json.dumps(line).encode() + b"\n")

    def receive(self):
        line = json.loads(self.file.readline())
        if "error" in line:
            raise RuntimeError(line["error"])
        return line

    def next_batch(self):
        """The next batch of the epoch; `None` at its end, which has as many batches as came."""
        if self.has_ended:
            return None
        if self.stream is None:
            self.stream = pa.ipc.open_stream(self.file)
        try:
            batch = self.stream.read_next_batch()
        except StopIteration:
            self.stream, self.has_ended, end = None, True, self.receive()
            if not end.get("end") or end["batches"] != self.batches:
                raise RuntimeError(f"{self.batches} batches have come, and the server says {end}")
            return None
        self.batches += 1
        return batch

    def close(self):
        self.file.close()
        self.socket.close()


class Served:
    """A server of a query, and its consumers."""

    def __init__(self, tool, sql, consumers, global_batch, options, token=None):
        self.directory = tempfile.mkdtemp(prefix="blockyard-served-")
        query, self.path = f"{self.directory}/query.sql", f"{self.directory}/socket"
        with open(query, "w") as file:
            file.write(sql)
        command = [tool, "serve", query, "--splits", str(consumers), "--listen", f"unix:{self.path}"]
        command += ["--global-batch-size", str(global_batch), *options]
        self.errors = tempfile.TemporaryFile()
        self.server = subprocess.Popen(
            command + (["--resume", token] if token else []), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        self.consumers = []
        try:
            # It prints its address when it listens.
            if not self.server.stdout.readline():
                raise RuntimeError("the server does not listen")
            self.consumers = [Consumer(self.path, number) for number in range(consumers)]
        except (OSError, RuntimeError, ValueError) as error:
            raise RuntimeError(f"{error}: {self.kill()}") from error

    def begin_epoch(self):
        """Whether there is another epoch."""
        for consumer in self.consumers:
            consumer.send({"next_epoch": True})
        # A server that has nothing left says so to all of them.
        lines = [consumer.receive() for consumer in self.consumers]
        for consumer in self.consumers:
            consumer.batches, consumer.has_ended = 0, False
        return not any(line.get("finished") for line in lines)

    def step(self):
        """The batches of a step, in the order of the consumers, acknowledged; none behind the last of the epoch."""
        batches = [consumer.next_batch() for consumer in self.consumers]
        for consumer, batch in zip(self.consumers, batches):
            if batch is not None:
                consumer.send({"ack": consumer.batches})
        return [batch for batch in batches if batch is not None]

    def token(self):
        """The token behind the last step that all have acknowledged, as the server knows it by now."""
        asking = socket.socket(socket.AF_UNIX)
        asking.settimeout(SECONDS)
        asking.connect(self.path)
        with asking, asking.makefile("rb") as file:
            asking.sendall(b'{"protocol":1,"status":true}\n')
            return json.loads(file.readline())["token"]

    def kill(self):
        """Ends all of it without a word. What the server has said."""
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self.server.stdout.close()
        for consumer in self.consumers:
            consumer.close()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip()
        self.errors.close()
        for name in os.listdir(self.directory):
            os.remove(f"{self.directory}/{name}")
        os.rmdir(self.directory)
        return said[-400:]
