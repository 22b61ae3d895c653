-- The roles and databases of deploy/docs/postgresql.md, made when the volume is new.
create role "durward-audit" login;
create role "durward-vault" login;
create database durward_audit owner "durward-audit";
create database durward_vault owner "durward-vault";
