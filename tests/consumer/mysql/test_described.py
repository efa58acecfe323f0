"""The description of a table in the words of MySQL, without what differs in a copy."""

from __future__ import annotations

from tidegate.consumer.mysql.described import difference, normalized

TABLE = """CREATE TABLE `t` (
  `p` int DEFAULT NULL COMMENT 'CONSTRAINT `x` CHECK (',
  CONSTRAINT `a``b` CHECK ((`p` <> 77)) /*!80016 NOT ENFORCED */,
  CONSTRAINT `t_chk_1` CHECK ((`p` > 0)),
  CONSTRAINT `t_chk_10` CHECK ((`p` > 9)),
  CONSTRAINT `t_chk_2` CHECK ((`p` > 1))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
COPY = """CREATE TABLE `copy` (
  `p` int DEFAULT NULL COMMENT 'CONSTRAINT `x` CHECK (',
  CONSTRAINT `copy_chk_1` CHECK ((`p` <> 77)) /*!80016 NOT ENFORCED */,
  CONSTRAINT `copy_chk_2` CHECK ((`p` > 0)),
  CONSTRAINT `copy_chk_3` CHECK ((`p` > 9)),
  CONSTRAINT `copy_chk_4` CHECK ((`p` > 1))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
"""As MySQL makes it by LIKE. With ten checks the names have another order than in the table."""


def test_a_copys_checks_are_the_same_by_other_names_in_another_order() -> None:
    moved = COPY.split("\n")
    moved[3], moved[4] = moved[4], moved[3]
    assert normalized(TABLE) == normalized(COPY) == normalized("\n".join(moved))


def test_a_check_that_differs_is_named() -> None:
    other = normalized(COPY.replace("> 9", "> 8"))
    assert difference(other, normalized(TABLE)) == "lacks CHECK ((`p` > 9)); has CHECK ((`p` > 8))"
