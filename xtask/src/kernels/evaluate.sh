# The job of a machine in which congestion controls are evaluated: runs the command whose words are
# the lines of /evaluate/command, in the directory that /evaluate/directory names, and hands its
# results over.
stty -F /dev/ttyS3 raw
mkdir -p /tmp/results
cd "$(cat /evaluate/directory)"
set --
while read -r word; do
    set -- "$@" "$word"
done </evaluate/command
echo "@ begin evaluate $(seconds)"
"$@" </dev/null 2>&1
echo "@ end evaluate $? $(seconds)"
tar -C /tmp/results -cz -f - . >/dev/ttyS3
