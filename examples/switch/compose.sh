#!/usr/bin/env bash
# Recreates one service of a compose project with the overrides of VARIANT.yaml.
set -euo pipefail
variant=${1:?give a variant, such as plain}
[ -f "$variant.yaml" ] || { echo "No file $variant.yaml in $PWD." >&2; exit 2; }

exec docker compose --file "${COMPOSE:-compose.yaml}" --file "$variant.yaml" up --detach --no-deps --force-recreate \
  "${SERVICE:-vllm}"
