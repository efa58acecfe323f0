"""The options of tables, partitions and databases.

Placement is left out and the time to live is switched off: a target has its own placement, and rows that
expire upstream are replicated as deletes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.columns import Columns
from tidegate.tidb.sql.cursor import quoted
from tidegate.tidb.sql.lexer import TokenKind

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


class Options(Columns):
    """Reads options."""

    def table_options(self, *, commas: bool) -> list[Option]:
        """The options that come next, in the form sent to targets; `commas`: whether commas may separate
        them.
        """
        found: list[Option] = []
        while (option := self.table_option()) is not None:
            if option.kind == "ttl":
                found += [option, Option(_TTL_OFF)]
            elif option.kind != "ttl_enable":
                found.append(option)
            if commas:
                self.take(",")
        return found

    def table_option(self) -> Option | None:
        """An option of a table, if one comes next."""
        key = self.token.key
        if (found := self.partition_option()) is not None:
            return found
        if key in _NUMBERS:
            return Option(self._number_option(self.next().key))
        if key in _STRINGS or key in _STRINGS_OR_NAMES:
            return Option(self._string_option(self.next().key))
        if (found := self._charset_option()) is not None:
            return found
        if key in ("AUTO_INCREMENT", "AUTO_RANDOM_BASE") or self.at("FORCE"):
            return self._auto_option()
        if self.at_any("TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL"):
            return self._ttl_option()
        return self._rare_table_option()

    def partition_option(self) -> Option | None:
        """An option that a partition may have, if one comes next."""
        if self.take("COMMENT"):
            self.take_equals()
            return Option(f"COMMENT = {self.plain_string()}")
        if self.at("ENGINE") or self.at("STORAGE", "ENGINE"):
            self.take("STORAGE")
            self.need("ENGINE")
            self.take_equals()
            return Option("ENGINE = " + (self.string_or_name() or "''"))
        if self.take("INSERT_METHOD"):
            self.take_equals()
            return Option(f"INSERT_METHOD = {self.string_or_name().upper()}")
        if self.at("DATA", "DIRECTORY") or self.at("INDEX", "DIRECTORY"):
            word = self.next().key
            self.need("DIRECTORY")
            self.take_equals()
            return Option(f"{word} DIRECTORY = {self.plain_string()}")
        if self.at_any("MAX_ROWS", "MIN_ROWS", "NODEGROUP"):
            return Option(self._number_option(self.next().key))
        if self.take("TABLESPACE"):
            self.take_equals()
            return Option(f"TABLESPACE = {self.name()}")
        if self.at("SECONDARY_ENGINE_ATTRIBUTE"):
            return Option(self._string_option(self.next().key))
        return self.placement_option()

    def placement_option(self) -> Option | None:
        """PLACEMENT POLICY, if it comes next. It is not sent to targets."""
        if not self.take("PLACEMENT", "POLICY"):
            return None
        if self.take("SET"):
            self.need("DEFAULT")
            return Option("", "placement")
        self.take_equals()
        if not self.take("DEFAULT"):
            self.string_or_name()
        return Option("", "placement")

    def _number_option(self, word: str) -> str:
        self.take_equals()
        comment = _NUMBERS[word]
        return f"{comment}{word} = {self.uint()}{' */' if comment else ''}"

    def _string_option(self, word: str) -> str:
        self.take_equals()
        text = self.string_or_name() if word in _STRINGS_OR_NAMES else self.string()
        return f"{word} = {self.plain(text)}"

    def _charset_option(self) -> Option | None:
        if self.at("DEFAULT") and self.ahead().key not in ("CHARSET", "CHARACTER", "CHAR", "COLLATE"):
            return None
        self.take("DEFAULT")
        if self.take_charset_word():
            self.take_equals()
            name = self.charset().upper()
            return Option(f"DEFAULT CHARACTER SET = {name}", f"charset {name}")
        if self.take("COLLATE"):
            self.take_equals()
            name = self.collation().upper()
            return Option(f"DEFAULT COLLATE = {name}", f"collate {name}")
        return None

    def _auto_option(self) -> Option | None:
        forced = self.at("FORCE")
        word = self.ahead().key if forced else self.token.key
        if word not in ("AUTO_INCREMENT", "AUTO_RANDOM_BASE"):
            return None
        self.take("FORCE")
        self.next()
        self.take_equals()
        text = f"{word} = {self.uint()}"
        if word == "AUTO_RANDOM_BASE":
            text = f"/*T![auto_rand_base] {text} */"
        return Option(f"/*T![force_inc] FORCE */ {text}" if forced else text)

    def _ttl_option(self) -> Option:
        word = self.next().key
        self.take_equals()
        if word == "TTL":
            column = self.name()
            self.need("+", "INTERVAL")
            amount = self.literal() or self.fail("a value")
            return Option(f"/*T![ttl] TTL = {column} + INTERVAL {amount} {self.unit()} */", "ttl")
        text = self.string()
        if word == "TTL_ENABLE":
            if text.upper() not in ("ON", "OFF"):
                self.fail("'ON' or 'OFF'")
            return Option("", "ttl_enable")
        return Option(f"/*T![ttl] TTL_JOB_INTERVAL = {self.plain(text)} */")

    def _rare_table_option(self) -> Option | None:
        if self.take("ROW_FORMAT"):
            self.take_equals()
            return Option(f"ROW_FORMAT = {self.need_any(*_ROW_FORMATS)}")
        if word := self.take_any(*_IGNORED_VALUES):
            self.take_equals()
            if not self.take("DEFAULT"):
                self.uint()
            return Option(f"{word} = DEFAULT /* {_IGNORED_VALUES[word]} is not supported */ ")
        if word := self.take_any("STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES"):
            self.take_equals()
            return Option(f"{word} = {self.take_any('DEFAULT') or self.uint()}")
        if self.take("STATS_SAMPLE_RATE"):
            self.take_equals()
            return Option(f"STATS_SAMPLE_RATE = {self.number()}")
        if self.at("STORAGE", "MEMORY") or self.at("STORAGE", "DISK"):
            self.next()
            return Option(f"STORAGE {self.next().key}")
        if self.take("SECONDARY_ENGINE"):
            self.take_equals()
            engine = "NULL" if self.take("NULL") else self.plain(self.string_or_name())
            return Option(f"SECONDARY_ENGINE = {engine}")
        if self.take("UNION"):
            self.take_equals()
            self.need("(")
            tables = [] if self.at(")") else self.listed(self.table_name)
            self.need(")")
            return Option(f"UNION = ({','.join(tables)})")
        if self.take("ENCRYPTION"):
            return Option(self.encryption())
        return None

    def encryption(self) -> str:
        """The word ENCRYPTION and its value."""
        self.take_equals()
        text = self.string()
        if text.upper() not in ("Y", "N"):
            self.fail("'Y' or 'N'")
        return f"ENCRYPTION = {self.plain(text)}"

    # --- databases --------------------------------------------------------------------------------------

    def database_options(self) -> list[Option]:
        """The options of a database."""
        found: list[Option] = []
        while (option := self._database_option()) is not None:
            found.append(option)
        return found

    def _database_option(self) -> Option | None:
        if self.at("SET", "TIFLASH"):
            return Option(self.tiflash_replica())
        self.take("DEFAULT")
        if self.take_charset_word():
            self.take_equals()
            return Option(f"CHARACTER SET = {self.charset()}")
        if self.take("COLLATE"):
            self.take_equals()
            return Option(f"COLLATE = {self.collation()}")
        if self.take("ENCRYPTION"):
            return Option(self.encryption())
        return self.placement_option()

    def tiflash_replica(self) -> str:
        """SET TIFLASH REPLICA."""
        self.need("SET")
        self.take("HYPO")
        self.need("TIFLASH", "REPLICA")
        text = f"SET TIFLASH REPLICA {self.uint()}"
        if self.take("LOCATION", "LABELS"):
            text += f" LOCATION LABELS {', '.join(self.listed(self.plain_string))}"
        return text

    def attributes(self) -> str:
        """ATTRIBUTES and its value."""
        self.need("ATTRIBUTES")
        self.take_equals()
        if self.take("DEFAULT"):
            return "ATTRIBUTES=DEFAULT"
        return f"ATTRIBUTES={self.plain_string()}"

    def policy_name(self) -> str:
        """The name of a policy, given as a string or as a name."""
        return quoted(self.next().text) if self.token.kind is TokenKind.STRING else self.name()
