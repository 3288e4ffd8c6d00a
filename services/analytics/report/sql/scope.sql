-- Policies that decided, and clocks that durations are by. What was not said is left out.
SELECT
    arraySort(groupUniqArrayIf(toString(policy), policy != '')) AS policies,
    arraySort(groupUniqArrayIf(toString(clock), clock != '')) AS clocks
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
