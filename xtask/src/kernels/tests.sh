# The job of a machine that runs test programs, one after the other.

# Each instruction takes 2 ns here, however much a real processor does in it: policies seem slow.
export CC_LAB_BATCH_BUDGET_MS=1000
# Tests may set the clock: it is nobody else's.
export CC_LAB_OWN_KERNEL=1

while read -r name filter; do
    echo "@ begin $name $(seconds)"
    echo "@ begin $name" >&2
    "/tests/$name" --color never $filter </dev/null
    echo "@ end $name $? $(seconds)"
done </tests/order
