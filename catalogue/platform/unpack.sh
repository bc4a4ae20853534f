#!/bin/bash
# Unpacks Debian packages, with what they need and this machine does not have, below a folder. Nothing is installed:
# the state of apt is the folder's own, and only the list of what is installed here is read.
#
#   unpack.sh FOLDER SUITE STATUS PACKAGE...
#
# STATUS is the list of installed packages (/var/lib/dpkg/status), or /dev/null to fetch all that they need. KEEP, an
# extended regular expression, leaves out packages whose names it does not match. DEBIAN_MIRROR names another mirror.
set -euo pipefail
folder=$1 suite=$2 status=$3
shift 3

mkdir -p "$folder"/apt/{state/lists/partial,cache/archives/partial} "$folder"/{debs,root}
cd "$folder"
echo "deb ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main" > apt/sources.list
cat > apt/apt.conf <<CONF
Dir::State "$PWD/apt/state";
Dir::State::status "$status";
Dir::Cache "$PWD/apt/cache";
Dir::Etc::sourcelist "$PWD/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Sandbox::User "";
CONF
export APT_CONFIG=$PWD/apt/apt.conf

apt-get update --quiet --quiet
apt-get install --yes --no-install-recommends --print-uris "$@" | sed -n "s/^'http[^ ]* \([^_ ]*\)_.*/\1/p" |
  { grep -E "${KEEP:-.}" || true; } | sort -u > names
(cd debs && xargs --no-run-if-empty --arg-file ../names apt-get download --quiet --quiet)
for deb in debs/*.deb; do dpkg-deb --extract "$deb" root; done
rm -r apt debs
