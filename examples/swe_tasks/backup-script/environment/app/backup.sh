#!/bin/bash
# Copies the .txt files of a folder: backup.sh SOURCE TARGET
source=$1
target=$2

mkdir -p $target
count=0
for file in $(echo $source/*.txt); do
    cp $file $target 2>/dev/null
    count=$((count + 1))
done
echo $count
