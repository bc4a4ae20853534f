#!/usr/bin/env bash
# Restarts a unit with VARIANT.conf as its drop-in. Needs the rights to do so: run `decide` as root, or allow these
# three commands to its user.
set -euo pipefail
variant=${1:?give a variant, such as plain}
[ -f "$variant.conf" ] || { echo "No file $variant.conf in $PWD." >&2; exit 2; }
unit=${UNIT:-vllm.service}

install -D --mode 0644 "$variant.conf" "${UNITS:-/etc/systemd/system}/$unit.d/90-draftwise.conf"
systemctl daemon-reload
exec systemctl restart "$unit"
