#!/usr/bin/env bash
# Makes the certificates of the tests of `tls:` anew: two authorities, an executor that the first has signed, and one
# that has signed itself. They are of this machine alone, and last a hundred years.
set -euo pipefail
cd "$(dirname "$0")"
new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500)
here="subjectAltName=IP:127.0.0.1,DNS:localhost"
for authority in authority stranger; do
    openssl req -x509 "${new[@]}" -subj "/CN=$authority of tests" -keyout "$authority.key" -out "$authority.pem"
done
openssl req -x509 "${new[@]}" -subj "/CN=executor of tests" -addext "$here" -addext basicConstraints=critical,CA:FALSE \
    -CA authority.pem -CAkey authority.key -keyout executor.key -out executor.pem
openssl req -x509 "${new[@]}" -subj "/CN=executor of its own" -addext "$here" \
    -addext basicConstraints=critical,CA:FALSE -keyout own.key -out own.pem
rm authority.key stranger.key
