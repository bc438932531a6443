#!/bin/bash
# Process 1 of a node, inside its own namespaces: makes the mounts that a machine would have, then its three daemons.
# Called with the node's folder, the folder of the programs, the keys' folder, its name and its address.
# When this process dies, the kernel ends everything in the node with it: that is its power cut.
set -u
folder=$1 programs=$2 keys=$3 name=$4 address=$5 images=$6
socket=$folder/containerd/c.sock

hostname "$name"
mount --make-rshared /
for path in /run/containerd /run/netns; do
    mkdir -p "$path"
    mount -t tmpfs tmpfs "$path"
done
mkdir -p /var/log/containers /var/lib/kubelet
mount --bind "$folder/containerlogs" /var/log/containers
mount --bind "$folder/kubelet" /var/lib/kubelet

# What a reboot loses: else the kubelet dials a dead socket.
rm -rf "$folder/containerd/state" "$folder"/containerd/*.sock*
mkdir -p "$folder/containerd/state"

containerd --config "$folder/containerd.toml" >>"$folder/containerd.log" 2>&1 &
until ctr -a "$socket" version >/dev/null 2>&1; do sleep 0.1; done
if [ ! -e "$folder/images-loaded" ]; then
    until ctr -a "$socket" -n k8s.io images import "$images" >>"$folder/images.log" 2>&1; do sleep 0.2; done
    touch "$folder/images-loaded"
fi
"$programs/kube-proxy" --config "$folder/proxy.json" >>"$folder/proxy.log" 2>&1 &
"$programs/kubelet" --config "$folder/kubelet.json" --kubeconfig "$keys/kubelet-$name.kubeconfig" \
    --root-dir /var/lib/kubelet --cert-dir "$folder/kubelet-keys" --hostname-override "$name" --node-ip "$address" \
    -v 1 >>"$folder/kubelet.log" 2>&1 &
wait
