"""Statements that no recording has, and how TiDB restores them."""

from __future__ import annotations

from typing import Final

VIEW: Final = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` AS "

TABLES: Final = {
    "create table t (id int primary key clustered)": (
        "CREATE TABLE `t` (`id` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */)"
    ),
    "create table t (id int, primary key (id) /*T![clustered_index] nonclustered */)": (
        "CREATE TABLE `t` (`id` INT,PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */)"
    ),
    "create table t (a bigint primary key auto_random(5,54)) auto_random_base 100": (
        "CREATE TABLE `t` (`a` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5, 54) */)"
        " /*T![auto_rand_base] AUTO_RANDOM_BASE = 100 */"
    ),
    "create table t (a int, /*!50003 b int */ /*T![auto_rand] , c bigint */ /*T![unknown] nonsense */)": (
        "CREATE TABLE `t` (`a` INT,`b` INT,`c` BIGINT)"
    ),
    "create table if not exists a.b (`x``y` varchar(9) charset latin1 not null default 'it''s \\\\')": (
        "CREATE TABLE IF NOT EXISTS `a`.`b` (`x``y` VARCHAR(9) CHARACTER SET LATIN1 NOT NULL"
        " DEFAULT _UTF8MB4'it''s \\\\')"
    ),
    "create table t (a int as (b+1) stored, b int check (b > 0) not enforced,"
    " c datetime(6) on update now(6))": (
        "CREATE TABLE `t` (`a` INT GENERATED ALWAYS AS(`b`+1) STORED,`b` INT CHECK(`b`>0) NOT ENFORCED,"
        "`c` DATETIME(6) ON UPDATE CURRENT_TIMESTAMP(6))"
    ),
    "create table t (a serial, b bool, c long varchar, d real, e fixed(3), f enum('a','b''c'),"
    " g bit(3) default b'101')": (
        "CREATE TABLE `t` (`a` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE KEY,`b` TINYINT(1),"
        "`c` MEDIUMTEXT,`d` DOUBLE,`e` DECIMAL(3),`f` ENUM('a','b''c'),`g` BIT(3) DEFAULT b'101')"
    ),
    "create table t (a int, constraint f foreign key (a) references p.q (id, x) match full"
    " on delete set null)": (
        "CREATE TABLE `t` (`a` INT,CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `p`.`q`(`id`, `x`) MATCH FULL"
        " ON DELETE SET NULL)"
    ),
    "create table t (a int, key k using hash ((a+1)) comment 'z' invisible, unique (a desc))": (
        "CREATE TABLE `t` (`a` INT,INDEX `k`((`a`+1)) USING HASH COMMENT 'z' INVISIBLE,UNIQUE(`a` DESC))"
    ),
    "create table t (c datetime) ttl = c + interval 1 day ttl_enable = 'on' shard_row_id_bits 4": (
        "CREATE TABLE `t` (`c` DATETIME) /*T![ttl] TTL = `c` + INTERVAL 1 DAY */"
        " /*T![ttl] TTL_ENABLE = 'OFF' */ /*T! SHARD_ROW_ID_BITS = 4 */"
    ),
    "create table t (a int) placement policy p": "CREATE TABLE `t` (`a` INT) ",
    "create table t like d.s": "CREATE TABLE `t` LIKE `d`.`s`",
}

PARTITIONS: Final = {
    "create table t (a int) partition by range (a) subpartition by hash(a) subpartitions 2"
    " (partition p values less than (1) (subpartition x, subpartition y))": (
        "CREATE TABLE `t` (`a` INT) PARTITION BY RANGE (`a`) SUBPARTITION BY HASH (`a`) SUBPARTITIONS 2"
        " (PARTITION `p` VALUES LESS THAN (1) (SUBPARTITION `x`,SUBPARTITION `y`))"
    ),
    "create table t (a int, b int) partition by list columns (a,b)"
    " (partition p values in ((1,2),(3,null)), partition q default)": (
        "CREATE TABLE `t` (`a` INT,`b` INT) PARTITION BY LIST COLUMNS (`a`,`b`)"
        " (PARTITION `p` VALUES IN ((1, 2), (3, NULL)),PARTITION `q` DEFAULT)"
    ),
    "create table t (a int) partition by range (a) interval (10) first partition less than (100)"
    " last partition less than (200) null partition maxvalue partition": (
        "CREATE TABLE `t` (`a` INT) PARTITION BY RANGE (`a`) INTERVAL (10) FIRST PARTITION LESS THAN (100)"
        " LAST PARTITION LESS THAN (200) NULL PARTITION MAXVALUE PARTITION"
    ),
    "create table t (a int) partition by linear key algorithm=2 (a) partitions 4": (
        "CREATE TABLE `t` (`a` INT) PARTITION BY LINEAR KEY ALGORITHM = 2 (`a`) PARTITIONS 4"
    ),
    "alter table t exchange partition p with table s without validation": (
        "ALTER TABLE `t` EXCHANGE PARTITION `p` WITH TABLE `s` WITHOUT VALIDATION"
    ),
    "alter table t reorganize partition a,b into (partition c values less than maxvalue)": (
        "ALTER TABLE `t` REORGANIZE PARTITION `a`,`b` INTO (PARTITION `c` VALUES LESS THAN (MAXVALUE))"
    ),
    "alter table t drop partition if exists a, b": "ALTER TABLE `t` DROP PARTITION IF EXISTS `a`,`b`",
}

CHANGES: Final = {
    "alter table t add column (a int, b int), drop column if exists g, rename index a to b": (
        "ALTER TABLE `t` ADD COLUMN (`a` INT, `b` INT), DROP COLUMN IF EXISTS `g`, RENAME INDEX `a` TO `b`"
    ),
    "alter table t force auto_increment=6, comment 'x'": (
        "ALTER TABLE `t` /*T![force_inc] FORCE */ AUTO_INCREMENT = 6, COMMENT = 'x'"
    ),
    "alter table t attributes='merge_option=allow'": "ALTER TABLE `t`",
    "alter table t remove ttl": "ALTER TABLE `t` /*T![ttl] REMOVE TTL */",
    "alter table t set tiflash replica 2 location labels 'a','b'": (
        "ALTER TABLE `t` SET TIFLASH REPLICA 2 LOCATION LABELS 'a', 'b'"
    ),
    "drop index if exists i on t": "DROP INDEX /*T! IF EXISTS  */`i` ON `t`",
    "create unique index if not exists i on t (a desc, (lower(b)), c(3)) comment 'x' global": (
        "CREATE UNIQUE INDEX IF NOT EXISTS `i` ON `t` (`a` DESC, (LOWER(`b`)), `c`(3)) COMMENT 'x'"
        " /*T![global_index] GLOBAL */"
    ),
    "create sequence if not exists s start 5 increment -1 no maxvalue cache=9": (
        "CREATE SEQUENCE IF NOT EXISTS `s` START WITH 5 INCREMENT BY -1 NO MAXVALUE CACHE 9"
    ),
    "create schema d charset utf8 placement policy p": "CREATE DATABASE `d` CHARACTER SET = utf8 ",
    "flashback table t to x": "FLASHBACK TABLE `t` TO `x`",
    "recover table by job 5": "RECOVER TABLE BY JOB 5",
    "truncate t": "TRUNCATE TABLE `t`",
    "rename table a to b, c.d to e.f": "RENAME TABLE `a` TO `b`, `c`.`d` TO `e`.`f`",
    "drop resource group g": "/*T![resource_group] DROP RESOURCE GROUP `g` */",
    "create database d; create table d.t (a int);": "CREATE DATABASE `d`;CREATE TABLE `d`.`t` (`a` INT)",
}

VIEWS: Final = {
    "select /*+ read_from_storage(tiflash[t, d.s@sel_1], tikv[`t` partition(p0, p1)]) */ 1 from t": (
        "SELECT /*+ READ_FROM_STORAGE(TIFLASH[`t`, `d`.`s`@`sel_1`])"
        " READ_FROM_STORAGE(TIKV[`t` PARTITION(`p0`, `p1`)])*/ 1 FROM `t`"
    ),
    "select /*+ read_from_storage(@sel tiflash[t]) read_from_storage(tiflash t) */ 1 from t": (
        "SELECT /*+ READ_FROM_STORAGE(@`sel` TIFLASH[`t`])*/ 1 FROM `t`"
    ),
    "select /*+ set_var(sql_mode='ANSI'), set_var(max_execution_time = 100), set_var() */ 1": (
        "SELECT /*+ SET_VAR(sql_mode = 'ANSI') SET_VAR(max_execution_time = '100')*/ 1"
    ),
    "select /*+ resource_group(rg1) resource_group(`default`) resource_group(a b) */ 1": (
        "SELECT /*+ RESOURCE_GROUP(`rg1`) RESOURCE_GROUP(`default`)*/ 1"
    ),
    "select /*+ use_index(t partition(p0) i, j) time_range('2020-02-02','2020-02-03') */ 1 from t": (
        "SELECT /*+ USE_INDEX(`t` PARTITION(`p0`) `i`, `j`) TIME_RANGE('2020-02-02', '2020-02-03')*/"
        " 1 FROM `t`"
    ),
    "select a.id, b.x as y from t a left join s b on a.id=b.id, u": (
        "SELECT `a`.`id`,`b`.`x` AS `y` FROM (`t` AS `a` LEFT JOIN `s` AS `b` ON `a`.`id`=`b`.`id`) JOIN `u`"
    ),
    "with recursive c(n) as (select 1 union all select n+1 from c where n<5) select n from c": (
        "WITH RECURSIVE `c` (`n`) AS (SELECT 1 UNION ALL SELECT `n`+1 FROM `c` WHERE `n`<5)"
        " SELECT `n` FROM `c`"
    ),
    "select sum(x) over w, rank() over (order by b desc rows between 1 preceding and current row)"
    " from t window w as (partition by a)": (
        "SELECT SUM(`x`) OVER `w`,RANK() OVER (ORDER BY `b` DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
        " FROM `t` WINDOW `w` AS (PARTITION BY `a`)"
    ),
    "select distinct t.*, count(*) from t where exists (select 1) and a not in (1,2) and b like 'x%'"
    " group by a having count(*)>1 order by a desc limit 5 offset 2": (
        "SELECT DISTINCT `t`.*,COUNT(1) FROM `t` WHERE EXISTS (SELECT 1) AND `a` NOT IN (1,2)"
        " AND `b` LIKE _UTF8MB4'x%' GROUP BY `a` HAVING COUNT(1)>1 ORDER BY `a` DESC LIMIT 2,5"
    ),
    "select case a when 1 then 'x' else null end, cast(a as decimal(10,2)), d + interval 1 day, a->'$.x'": (
        "SELECT CASE `a` WHEN 1 THEN _UTF8MB4'x' ELSE NULL END,CAST(`a` AS DECIMAL(10, 2)),"
        "DATE_ADD(`d`, INTERVAL 1 DAY),JSON_EXTRACT(`a`, _UTF8MB4'$.x')"
    ),
    "select x'4142', b'101', _latin1'x', 0x1f, 1e3, .5, -1, true, 'a' 'b', !a, not a,"
    " a div 2, a or b and c": (
        "SELECT x'4142',b'101',_LATIN1'x',x'1f',1e+03,0.5,-1,TRUE,_UTF8MB4'ab',!`a`,NOT `a`,`a` DIV 2,"
        "`a` OR `b` AND `c`"
    ),
    "select group_concat(distinct a order by b separator ';'), trim(both 'x' from a), extract(day from d)": (
        "SELECT GROUP_CONCAT(DISTINCT `a` ORDER BY `b` SEPARATOR ';'),TRIM(BOTH _UTF8MB4'x' FROM `a`),"
        "EXTRACT(DAY FROM `d`)"
    ),
    "(select 1 union all select 2) intersect select 3": "(SELECT 1 UNION ALL SELECT 2) INTERSECT SELECT 3",
}

STATEMENTS: Final = TABLES | PARTITIONS | CHANGES
STATEMENTS |= {f"create view v as {query}": VIEW + said for query, said in VIEWS.items()}
