"""Operations as SQL, in the dialects of the engines that read it."""

from shapes.operations import Call, First, Group, Iterate, Join, Last, Rows, Sort, Text, Window

# How calls are written where a dialect does not say otherwise.
CALLS = {
    "mod": "{} % {}",
    "plus": "{} + {}",
    "times": "{} * {}",
    "upper": "upper({})",
    "chars": "character_length({})",
    "octets": "octet_length({})",
    "items": "array_length({})",
    "first_a": "{}[1]['a']",
    "hour": "date_part('hour', {})",
    "year": "date_part('year', {})",
    "otherwise": "coalesce({}, {})",
    "joined": "{} || '/' || {}",
    "sum": "sum({})",
    "total": "sum({})",
    "mean": "avg({})",
    "min": "min({})",
    "max": "max({})",
    "distinct": "count(DISTINCT {})",
}
DIALECTS = {
    # Its sums of integers have 128 bits, which files do not.
    "duckdb": {"sum": "CAST(sum({}) AS BIGINT)"},
    # It has no length of binary values.
    "datafusion": {"octets": "octet_length(encode({}, 'hex')) / 2"},
    "blockyard": {},
}


def expression(value, dialect):
    if isinstance(value, Text):
        return f"'{value.value}'"
    if not isinstance(value, Call):
        return str(value)
    arguments = [expression(argument, dialect) for argument in value.arguments]
    if value.name == "count":
        return f"count({''.join(arguments) or '*'})"
    return DIALECTS[dialect].get(value.name, CALLS[value.name]).format(*arguments)


def named(columns, dialect):
    return [expression(value, dialect) + ("" if value == name else f" AS {name}") for name, value in columns.items()]


def query(operation, dialect):
    """The SELECT over tables `t`, `small`, `other` and `keys`, for operations that are one everywhere."""
    match operation:
        case Rows(less, columns, computed):
            columns = ", ".join([*columns, *named(computed, dialect)])
            return f"SELECT {columns} FROM t WHERE {less[0]} < {less[1]}"
        case Group(keys, measures):
            columns = ", ".join(named(keys | measures, dialect))
            return f"SELECT {columns} FROM t GROUP BY {', '.join(expression(key, dialect) for key in keys.values())}"
        case Join("inner", right, on, left_columns, right_columns):
            columns = ", ".join([f"t.{name}" for name in left_columns] + [f"{right}.{name}" for name in right_columns])
            return f"SELECT {columns} FROM t JOIN {right} ON t.{on[0]} = {right}.{on[1]}"
        case Join("semi", right, on, left_columns, _, less):
            some = f"SELECT {on[1]} FROM {right} WHERE v < {less}"
            return f"SELECT {', '.join(left_columns)} FROM t WHERE {on[0]} IN ({some})"
        case Join("anti", right, on, left_columns, _, less):
            some = f"SELECT 1 FROM {right} WHERE {right}.{on[1]} = t.{on[0]} AND {right}.v < {less}"
            return f"SELECT {', '.join(left_columns)} FROM t WHERE NOT EXISTS ({some})"
        case Sort(keys, limit):
            order = ", ".join(key + (" DESC" if descends else "") for key, descends in keys)
            return f"SELECT * FROM t ORDER BY {order}" + (f" LIMIT {limit}" if limit else "")
        case Window(key, order, column, columns):
            over = f"PARTITION BY {key} ORDER BY {', '.join(order)}"
            running = expression(Call("sum", (column,)), "datafusion")
            running += f" OVER ({over} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
            running = f"CAST({running} AS BIGINT)" if dialect == "duckdb" else running
            return f"SELECT {', '.join(columns)}, row_number() OVER ({over}) AS n, {running} AS running FROM t"
        case Last(key, order, rows, columns):
            order = ", ".join(f"{column} DESC" for column in order)
            numbered = f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS n FROM t"
            return f"SELECT {', '.join(columns)} FROM ({numbered}) AS numbered WHERE n <= {rows}"
        case Iterate():
            return "SELECT * FROM t"
        case First(rows):
            return f"SELECT * FROM t LIMIT {rows}"
    raise NotImplementedError(f"not the same everywhere: {operation}")
