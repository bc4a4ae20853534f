#!/usr/bin/env bash
# Applies VARIANT.yaml and waits for the roll-out. The manifests of all variants name the same Deployment.
set -euo pipefail
variant=${1:?give a variant, such as plain}
[ -f "$variant.yaml" ] || { echo "No file $variant.yaml in $PWD." >&2; exit 2; }
namespace=${NAMESPACE:-default}

kubectl apply --namespace "$namespace" --filename "$variant.yaml"
exec kubectl rollout status --namespace "$namespace" "${RESOURCE:-deployment/vllm}" --timeout "${TIMEOUT:-15m}"
