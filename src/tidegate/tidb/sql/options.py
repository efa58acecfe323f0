"""The options of tables, partitions and databases.

Placement is left out and the time to live is switched off: a target has its own placement, and rows that
expire upstream are replicated as deletes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.literals import Literals

_NUMBERS: Final = {
    "AVG_ROW_LENGTH": "",
    "CHECKSUM": "",
    "TABLE_CHECKSUM": "",
    "KEY_BLOCK_SIZE": "",
    "DELAY_KEY_WRITE": "",
    "MAX_ROWS": "",
    "MIN_ROWS": "",
    "NODEGROUP": "",
    "STATS_BUCKETS": "",
    "STATS_TOPN": "",
    "PAGE_CHECKSUM": "",
    "PAGE_COMPRESSED": "",
    "PAGE_COMPRESSION_LEVEL": "",
    "TRANSACTIONAL": "",
    "AUTO_ID_CACHE": "/*T![auto_id_cache] ",
    "SHARD_ROW_ID_BITS": "/*T! ",
    "PRE_SPLIT_REGIONS": "/*T! ",
}
"""Options whose value is a number -> the comment in which TiDB writes them."""

_STRINGS: Final = ("CONNECTION", "PASSWORD", "COMPRESSION", "STATS_COL_CHOICE", "STATS_COL_LIST", "COMMENT")
_STRINGS_OR_NAMES: Final = ("AUTOEXTEND_SIZE", "AFFINITY", "IETF_QUOTES", "ENGINE_ATTRIBUTE")
_INNODB_FORMATS: Final = ("DEFAULT", "DYNAMIC", "FIXED", "COMPRESSED", "REDUNDANT", "COMPACT")
_TOKUDB_FORMATS: Final = (
    "DEFAULT",
    "FAST",
    "SMALL",
    "ZLIB",
    "QUICKLZ",
    "LZMA",
    "SNAPPY",
    "UNCOMPRESSED",
    "ZSTD",
)
_ROW_FORMATS: Final = (*_INNODB_FORMATS, *(f"TOKUDB_{kind}" for kind in _TOKUDB_FORMATS))
_IGNORED_VALUES: Final = {
    "STATS_PERSISTENT": "TableOptionStatsPersistent",
    "PACK_KEYS": "TableOptionPackKeys",
}
_TTL_OFF: Final = "/*T![ttl] TTL_ENABLE = 'OFF' */"


class Option(NamedTuple):
    """An option of a table."""

    text: str
    kind: str = ""
    """`placement`, `ttl`, `ttl_enable`, `charset`, `collate`; empty for all others."""


class Options:
    """Reads options."""

    def __init__(self, cursor: Cursor, literals: Literals) -> None:
        self._cursor, self._literals = cursor, literals

    def table_options(self, *, commas: bool) -> list[Option]:
        """The options that come next, in the form sent to targets; `commas`: whether commas may separate
        them.
        """
        found: list[Option] = []
        while (option := self.table_option()) is not None:
            # Rows that expire upstream arrive as deletes. A target that expired them as well could do so
            # earlier.
            if option.kind == "ttl":
                found += [option, Option(_TTL_OFF)]
            elif option.kind != "ttl_enable":
                found.append(option)
            if commas:
                self._cursor.take(",")
        return found

    def table_option(self) -> Option | None:
        """An option of a table, if one comes next."""
        cursor = self._cursor
        key = cursor.token.key
        if (found := self.partition_option()) is not None:
            return found
        if key in _NUMBERS:
            return Option(self._number_option(cursor.next().key))
        if key in _STRINGS or key in _STRINGS_OR_NAMES:
            return Option(self._string_option(cursor.next().key))
        if (found := self._charset_option()) is not None:
            return found
        if key in ("AUTO_INCREMENT", "AUTO_RANDOM_BASE") or cursor.at("FORCE"):
            return self._auto_option()
        if cursor.at_any("TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL"):
            return self._ttl_option()
        return self._rare_table_option()

    def partition_option(self) -> Option | None:
        """An option that a partition may have, if one comes next."""
        cursor = self._cursor
        if cursor.take("COMMENT"):
            cursor.take_equals()
            return Option(f"COMMENT = {cursor.plain_string()}")
        if cursor.at("ENGINE") or cursor.at("STORAGE", "ENGINE"):
            cursor.take("STORAGE")
            cursor.need("ENGINE")
            cursor.take_equals()
            return Option("ENGINE = " + (cursor.string_or_name() or "''"))
        if cursor.take("INSERT_METHOD"):
            cursor.take_equals()
            return Option(f"INSERT_METHOD = {cursor.string_or_name().upper()}")
        if cursor.at("DATA", "DIRECTORY") or cursor.at("INDEX", "DIRECTORY"):
            word = cursor.next().key
            cursor.need("DIRECTORY")
            cursor.take_equals()
            return Option(f"{word} DIRECTORY = {cursor.plain_string()}")
        if cursor.at_any("MAX_ROWS", "MIN_ROWS", "NODEGROUP"):
            return Option(self._number_option(cursor.next().key))
        if cursor.take("TABLESPACE"):
            cursor.take_equals()
            return Option(f"TABLESPACE = {cursor.name()}")
        if cursor.at("SECONDARY_ENGINE_ATTRIBUTE"):
            return Option(self._string_option(cursor.next().key))
        return self.placement_option()

    def placement_option(self) -> Option | None:
        """PLACEMENT POLICY, if it comes next. It is not sent to targets."""
        cursor = self._cursor
        if not cursor.take("PLACEMENT", "POLICY"):
            return None
        if cursor.take("SET"):
            cursor.need("DEFAULT")
            return Option("", "placement")
        cursor.take_equals()
        if not cursor.take("DEFAULT"):
            cursor.string_or_name()
        return Option("", "placement")

    def _number_option(self, word: str) -> str:
        cursor = self._cursor
        cursor.take_equals()
        comment = _NUMBERS[word]
        return f"{comment}{word} = {cursor.uint()}{' */' if comment else ''}"

    def _string_option(self, word: str) -> str:
        cursor = self._cursor
        cursor.take_equals()
        text = cursor.string_or_name() if word in _STRINGS_OR_NAMES else cursor.string()
        return f"{word} = {cursor.plain(text)}"

    def _charset_option(self) -> Option | None:
        cursor = self._cursor
        # DEFAULT may begin something that is no option, so it is not taken before the next word is known.
        if cursor.at("DEFAULT") and cursor.ahead().key not in ("CHARSET", "CHARACTER", "CHAR", "COLLATE"):
            return None
        cursor.take("DEFAULT")
        if cursor.take_charset_word():
            cursor.take_equals()
            name = cursor.charset().upper()
            return Option(f"DEFAULT CHARACTER SET = {name}", f"charset {name}")
        if cursor.take("COLLATE"):
            cursor.take_equals()
            name = cursor.collation().upper()
            return Option(f"DEFAULT COLLATE = {name}", f"collate {name}")
        return None

    def _auto_option(self) -> Option | None:
        cursor = self._cursor
        forced = cursor.at("FORCE")
        word = cursor.ahead().key if forced else cursor.token.key
        if word not in ("AUTO_INCREMENT", "AUTO_RANDOM_BASE"):
            return None
        cursor.take("FORCE")
        cursor.next()
        cursor.take_equals()
        text = f"{word} = {cursor.uint()}"
        if word == "AUTO_RANDOM_BASE":
            text = f"/*T![auto_rand_base] {text} */"
        return Option(f"/*T![force_inc] FORCE */ {text}" if forced else text)

    def _ttl_option(self) -> Option:
        cursor = self._cursor
        word = cursor.next().key
        cursor.take_equals()
        if word == "TTL":
            column = cursor.name()
            cursor.need("+", "INTERVAL")
            amount = self._literals.literal() or cursor.fail("a value")
            return Option(f"/*T![ttl] TTL = {column} + INTERVAL {amount} {cursor.unit()} */", "ttl")
        text = cursor.string()
        if word == "TTL_ENABLE":
            if text.upper() not in ("ON", "OFF"):
                cursor.fail("'ON' or 'OFF'")
            return Option("", "ttl_enable")
        return Option(f"/*T![ttl] TTL_JOB_INTERVAL = {cursor.plain(text)} */")

    def _rare_table_option(self) -> Option | None:
        cursor = self._cursor
        if cursor.take("ROW_FORMAT"):
            cursor.take_equals()
            return Option(f"ROW_FORMAT = {cursor.need_any(*_ROW_FORMATS)}")
        if word := cursor.take_any(*_IGNORED_VALUES):
            cursor.take_equals()
            if not cursor.take("DEFAULT"):
                cursor.uint()
            return Option(f"{word} = DEFAULT /* {_IGNORED_VALUES[word]} is not supported */ ")
        if word := cursor.take_any("STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES"):
            cursor.take_equals()
            return Option(f"{word} = {cursor.take_any('DEFAULT') or cursor.uint()}")
        if cursor.take("STATS_SAMPLE_RATE"):
            cursor.take_equals()
            return Option(f"STATS_SAMPLE_RATE = {self._literals.number()}")
        if cursor.at("STORAGE", "MEMORY") or cursor.at("STORAGE", "DISK"):
            cursor.next()
            return Option(f"STORAGE {cursor.next().key}")
        if cursor.take("SECONDARY_ENGINE"):
            cursor.take_equals()
            engine = "NULL" if cursor.take("NULL") else cursor.plain(cursor.string_or_name())
            return Option(f"SECONDARY_ENGINE = {engine}")
        if cursor.take("UNION"):
            cursor.take_equals()
            cursor.need("(")
            tables = [] if cursor.at(")") else cursor.listed(cursor.table_name)
            cursor.need(")")
            return Option(f"UNION = ({','.join(tables)})")
        if cursor.take("ENCRYPTION"):
            return Option(self.encryption())
        return None

    def encryption(self) -> str:
        """The word ENCRYPTION and its value."""
        cursor = self._cursor
        cursor.take_equals()
        text = cursor.string()
        if text.upper() not in ("Y", "N"):
            cursor.fail("'Y' or 'N'")
        return f"ENCRYPTION = {cursor.plain(text)}"

    # --- databases --------------------------------------------------------------------------------------

    def database_options(self) -> list[Option]:
        """The options of a database."""
        found: list[Option] = []
        while (option := self._database_option()) is not None:
            found.append(option)
        return found

    def _database_option(self) -> Option | None:
        cursor = self._cursor
        if cursor.at("SET", "TIFLASH"):
            return Option(self.tiflash_replica())
        cursor.take("DEFAULT")
        if cursor.take_charset_word():
            cursor.take_equals()
            return Option(f"CHARACTER SET = {cursor.charset()}")
        if cursor.take("COLLATE"):
            cursor.take_equals()
            return Option(f"COLLATE = {cursor.collation()}")
        if cursor.take("ENCRYPTION"):
            return Option(self.encryption())
        return self.placement_option()

    def tiflash_replica(self) -> str:
        """SET TIFLASH REPLICA."""
        cursor = self._cursor
        cursor.need("SET")
        cursor.take("HYPO")
        cursor.need("TIFLASH", "REPLICA")
        text = f"SET TIFLASH REPLICA {cursor.uint()}"
        if cursor.take("LOCATION", "LABELS"):
            text += f" LOCATION LABELS {', '.join(cursor.listed(cursor.plain_string))}"
        return text

    def attributes(self) -> str:
        """ATTRIBUTES and its value."""
        cursor = self._cursor
        cursor.need("ATTRIBUTES")
        cursor.take_equals()
        if cursor.take("DEFAULT"):
            return "ATTRIBUTES=DEFAULT"
        return f"ATTRIBUTES={cursor.plain_string()}"
