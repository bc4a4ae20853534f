#!/bin/bash
# Makes a base image with Python from Debian's packages alone, for machines that reach no registry of images.
#
#   image_base.sh NAME [SUITE]        needs root, mmdebstrap and buildah
set -euo pipefail
tree=$(mktemp --suffix .tar)
trap 'rm -f "$tree"' EXIT
mmdebstrap --quiet --variant=minbase --mode=root --include=python3-venv,ca-certificates "${2:-bookworm}" "$tree" \
  "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
container=$(buildah from scratch)
buildah add --quiet "$container" "$tree" /
buildah commit --quiet --rm "$container" "$1"
