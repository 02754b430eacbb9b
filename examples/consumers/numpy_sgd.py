"""A consumer of `blockyard serve`: linear or logistic regression by gradient descent on the batches that it gets.

    pip install pyarrow numpy
    python examples/consumers/numpy_sgd.py unix:/tmp/split 0 --label y [--features a b] [--kind logistic] [--epochs 3]
    python examples/consumers/numpy_sgd.py tcp:127.0.0.1:4000 1 --key KEY --label y

It speaks the protocol of docs/reference/split_protocol.md: lines of JSON, and an Arrow IPC stream for each epoch. Each
batch is acknowledged when a step has been made with it. Without `--features` these are all columns of floats but the
label. They should be of about the size of 1. It fails where the rows of an epoch are not as many as the server says.
"""

import argparse
import json
import socket
import sys

import numpy as np
import pyarrow as pa

MAX_LINE = 64 << 10


class Consumer:
    """The connection of one consumer."""

    def __init__(self, address, consumer, key=None, prefetch_batches=1):
        kind, _, rest = address.partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(rest)
        elif kind == "tcp":
            host, _, port = rest.rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
        else:
            raise ValueError(f"an address is unix:PATH or tcp:HOST:PORT, not {address}")
        # For lines and streams alike: pyarrow takes no byte behind the end of a stream, so the next line is here.
        self.file = self.socket.makefile("rb")
        hello = {"protocol": 1, "consumer": consumer, "prefetch_batches": prefetch_batches}
        self.send(hello | ({"key": key} if key else {}))
        self.consumers = self.receive()["consumers"]

    def send(self, line):
        self.socket.sendall(json.dumps(line).encode() + b"\n")

    def receive(self):
        """The next line. That of an error is raised."""
        text = self.file.readline(MAX_LINE)
        if not text.endswith(b"\n"):
            raise ConnectionError(f"the connection ends, or a line is too long, behind {text[:80]!r}")
        line = json.loads(text)
        if "error" in line:
            raise RuntimeError(line["error"])
        return line

    def next_epoch(self):
        """The number of the next epoch, and its batches; `None` behind the last one."""
        self.send({"next_epoch": True})
        line = self.receive()
        return None if line.get("finished") else (line["epoch"], self.batches())

    def batches(self):
        """The batches of an epoch. Each is acknowledged when the next one is asked for."""
        rows, batches = 0, 0
        for batch in pa.ipc.open_stream(self.file):
            rows, batches = rows + batch.num_rows, batches + 1
            yield batch
            self.send({"ack": batches})
        end = self.receive()
        if not end.get("end") or (end["batches"], end["rows"]) != (batches, rows):
            raise RuntimeError(f"{batches} batches with {rows} rows have come, and the server says {end}")

    def close(self):
        self.file.close()
        self.socket.close()


def columns_of(schema, label):
    """The names of the features."""
    return [field.name for field in schema if pa.types.is_floating(field.type) and field.name != label]


def step(weights, batch, features, label, kind, rate):
    """Changes the weights, of which the last is the bias, by the gradient of a batch. Returns the sum of the losses."""
    columns = [batch[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in [*features, label]]
    rows, wanted = np.column_stack([*columns[:-1], np.ones(batch.num_rows)]), columns[-1]
    score = rows @ weights
    if kind == "logistic":
        losses = np.logaddexp(0.0, score) - wanted * score
        error = 1.0 / (1.0 + np.exp(-np.clip(score, -500, 500))) - wanted
    else:
        error = score - wanted
        losses = error**2
    weights -= rate * (rows.T @ error) / batch.num_rows
    return float(losses.sum())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address", help="unix:PATH or tcp:HOST:PORT")
    parser.add_argument("consumer", type=int, help="which consumer it is, from 0 on")
    parser.add_argument("--key", help="what the server has printed, over TCP")
    parser.add_argument("--label", required=True)
    parser.add_argument("--features", nargs="*")
    parser.add_argument("--kind", choices=["linear", "logistic"], default="linear")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    consumer = Consumer(arguments.address, arguments.consumer, arguments.key)
    weights, features = None, arguments.features
    for _ in range(arguments.epochs):
        begun = consumer.next_epoch()
        if begun is None:
            break
        number, batches = begun
        rows, loss = 0, 0.0
        for batch in batches:
            features = features or columns_of(batch.schema, arguments.label)
            weights = np.zeros(len(features) + 1) if weights is None else weights
            loss += step(weights, batch, features, arguments.label, arguments.kind, arguments.rate)
            rows += batch.num_rows
        print(f"epoch {number}: {rows} rows, loss {loss / max(rows, 1):.6f}", flush=True)
    consumer.close()
    if weights is None or not np.isfinite(weights).all():
        sys.exit("no batch has come" if weights is None else "the weights are no numbers: a smaller --rate may help")
    print("weights " + " ".join(f"{name}={weight:.6f}" for name, weight in zip([*features, "bias"], weights)))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
