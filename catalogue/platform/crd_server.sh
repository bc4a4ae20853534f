#!/bin/bash
# Builds a current API server for CustomResourceDefinitions (k8s.io/apiextensions-apiserver: rules in CEL, strict
# validation of fields) and its store etcd from Debian packages alone; takes about three minutes on two cores.
#
#   crd_server.sh FOLDER        leaves FOLDER/apiextensions-apiserver and FOLDER/etcd
#
# It has no kinds of Kubernetes itself (Deployment, Service): those need the whole server.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd) here=$(cd "$(dirname "$0")" && pwd)
if [ -x "$folder/apiextensions-apiserver" ] && [ -x "$folder/etcd" ]; then exit; fi
work=$(mktemp -d "$folder/build.XXXXXX")
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

# shellcheck disable=SC1091
"$here/unpack.sh" "$work/etcd" "$(. /etc/os-release && echo "$VERSION_CODENAME")" /var/lib/dpkg/status etcd-server
KEEP='^golang-' "$here/unpack.sh" "$work/go" sid /dev/null golang-k8s-apiextensions-apiserver-dev golang-go
root=$work/go/root release=$(ls "$work/go/root/usr/lib" | grep '^go-')

# Debian keeps what depends on the machine apart from what does not; the toolchain wants one tree.
goroot=$work/goroot
cp -r "$root/usr/share/$release/." "$goroot"
cp -r "$root/usr/lib/$release/bin" "$goroot/bin"
mkdir -p "$goroot/pkg"
cp -r "$root/usr/lib/$release/pkg/tool" "$goroot/pkg/tool"
cp -L "$root/usr/lib/$release/VERSION" "$goroot/VERSION"

export GOROOT=$goroot GOPATH=$root/usr/share/gocode GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0
export GOTOOLCHAIN=local GOFLAGS=-p=2
cd "$GOPATH/src/k8s.io/apiextensions-apiserver"
# A server takes part of its behaviour from its version, and refuses to start without one.
version=k8s.io/component-base/version
"$goroot/bin/go" build -ldflags "-s -w -X $version.gitVersion=v1.36.4 -X $version.gitMajor=1 -X $version.gitMinor=36" \
  -o "$work/server" .
mv "$work/etcd/root/usr/bin/etcd" "$folder/etcd"
mv "$work/server" "$folder/apiextensions-apiserver"
