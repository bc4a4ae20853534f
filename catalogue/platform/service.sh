#!/bin/bash
# Unpacks Prometheus, Alertmanager and HAProxy from the packages of this machine's Debian; nothing is installed.
#
#   service.sh FOLDER        leaves them below FOLDER/root
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$1/root
if [ -x "$root/usr/bin/prometheus-alertmanager" ] && [ -x "$root/usr/sbin/haproxy" ]; then exit; fi
# shellcheck disable=SC1091
"$here/unpack.sh" "$1" "$(. /etc/os-release && echo "$VERSION_CODENAME")" /var/lib/dpkg/status \
  prometheus prometheus-alertmanager haproxy
# Debian's Alertmanager has the folder of its templates built in. Another path of the same length makes it look for them
# in the folder where it is started.
LC_ALL=C sed -i "s|/usr/share/prometheus/alertmanager|$(printf './%.0s' {1..17})|g" "$root/usr/bin/prometheus-alertmanager"
