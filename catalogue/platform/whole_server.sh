#!/bin/bash
# Builds a whole API server of Kubernetes with its controllers, and its store etcd, from Debian's packages; takes about a
# quarter of an hour on two cores.
#
#   whole_server.sh FOLDER        leaves FOLDER/kube-apiserver, FOLDER/kube-controller-manager and FOLDER/etcd
#
# It is Debian 12's 1.20.2: the last release whose source Debian has whole. It serves Deployments, Services, Jobs and
# roll-outs, and knows neither rules in CEL nor strict validation of fields: those are crd_server.sh's.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd) here=$(cd "$(dirname "$0")" && pwd)
if [ -x "$folder/kube-apiserver" ] && [ -x "$folder/kube-controller-manager" ] && [ -x "$folder/etcd" ]; then exit; fi
work=$(mktemp -d "$folder/build.XXXXXX")
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

"$here/unpack.sh" "$work/etcd" bookworm /var/lib/dpkg/status etcd-server
KEEP='^golang-' "$here/unpack.sh" "$work/go" bookworm /dev/null golang-1.19-go golang-github-modern-go-reflect2-dev
mv "$work/etcd/root/usr/bin/etcd" "$folder/etcd"

mkdir -p "$work"/source/state/lists/partial
cd "$work/source"
echo "deb-src ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" > sources.list
cat > apt.conf <<CONF
Dir::State "$PWD/state";
Dir::Etc::sourcelist "$PWD/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Cache "$PWD/cache";
APT::Sandbox::User "";
CONF
APT_CONFIG=$PWD/apt.conf apt-get update --quiet --quiet
APT_CONFIG=$PWD/apt.conf apt-get source --quiet --quiet --download-only kubernetes
export GOPATH=$work/gopath
tree=$GOPATH/src/k8s.io/kubernetes
mkdir -p "$tree"
tar --extract --file kubernetes_*.orig.tar.* --strip-components 1 --directory "$tree"

# Debian keeps what depends on the machine apart from what does not; the toolchain wants one tree.
root=$work/go/root
export GOROOT=$work/goroot GOCACHE=${GOCACHE:-$work/cache} GO111MODULE=off CGO_ENABLED=0
cp -r "$root/usr/share/go-1.19/." "$GOROOT"
cp -r "$root/usr/lib/go-1.19/bin" "$GOROOT/bin"
mkdir -p "$GOROOT/pkg"
cp -r "$root/usr/lib/go-1.19/pkg/tool" "$GOROOT/pkg/tool"
cp -L "$root/usr/lib/go-1.19/VERSION" "$GOROOT/VERSION"
# The vendored release of this package crashes with Go 1.18 and newer.
rm -r "$tree/vendor/github.com/modern-go/reflect2"
cp -r "$root/usr/share/gocode/src/github.com/modern-go/reflect2" "$tree/vendor/github.com/modern-go/reflect2"

cd "$tree"
go=$GOROOT/bin/go
"$go" build -p 2 -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$(grep -rl --include='*.go' -E '^ *// *\+k8s:openapi-gen=true' pkg cmd plugin staging/src/k8s.io \
  vendor/k8s.io/kube-openapi | grep -vE '_test.go|/testdata/|/test/|sample-|examples/' | xargs -n1 dirname | sort -u |
  sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; t; s#^#k8s.io/kubernetes/#' | paste -sd,)
"$work/openapi-gen" -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations" --output-base "$GOPATH/src"
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
for program in kube-apiserver kube-controller-manager; do
  "$go" build -p 2 -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
    -o "$work/$program" "./cmd/$program"
  mv "$work/$program" "$folder/$program"
done
